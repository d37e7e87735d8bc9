"""What one SAC update costs: on a shared trunk, and with the language model inside each network.

    python tests/benchmarks/bench_update.py                        # t5-small, all weights and LoRA
    python tests/benchmarks/bench_update.py --models flan-t5-base --states 8 --repeats 3
    python tests/benchmarks/bench_update.py --models flan-t5-base --device cuda --states 64
    python tests/benchmarks/bench_update.py --models tiny --states 4   # a smoke run: seconds

Random weights on architectures of the named sizes, prompts of 86 to 94 tokens, as many candidates
as objects plus two, one row in eight terminal. An update is the losses, their gradients, Adam's
step and the targets' step. Methods:

- shared: `SACGLAMLoss` with `SharedTrunkOptimizer`, one Adam for the summed losses;
- shared, 2 Adams: the same with an Adam for each loss, so two backward passes;
- shared, recomputed: one Adam, and gradient checkpointing;
- naive: `DiscreteSACLoss` with the language model inside actor and critic, each prompt encoded
  once and its encoding repeated per candidate (without vmap, which is slower);
- naive, vmap: the same as TorchRL runs it by default (attention is then eager: the fused one of the
  CPU refuses it).

4-bit weights are left out, as `DiscreteSACLoss` cannot copy them (it re-samples weights in place).

Every cell runs in a process of its own. "peak" is the most memory that the process ever held
(on a GPU, that tensors took), "above" is without what the interpreter and the libraries hold;
"targets" and "Adam" are the bytes of target weights and of optimizer states among it. "speed" and
"memory" compare with the shared trunk; the second "speed" is of processor time, which other work on
the machine hardly changes. The losses of all methods are compared.
"""

import argparse
import gc
import multiprocessing
import time
import warnings

import torch
from peft import get_peft_model
from scoring_methods import MODELS, adapters, in_four_bits, make_states, products
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, CandidateCritic, make_trunk
from torchrl_glam.models.trunks.gradients import checkpoint_layers
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer

from flan_t5 import make_tokenizer  # isort: skip (scoring_methods adds the folder of tests)
from naive_sac import PlainReader, make_naive_loss  # isort: skip

SHARED = ("shared", "shared, 2 Adams", "shared, recomputed")
NAIVE = ("naive", "naive, vmap")
LOSSES = ("loss_actor", "loss_qvalue", "loss_alpha")
SETTINGS = {"gamma": 0.99, "alpha_init": 0.05, "target_entropy": 0.01, "tau": 0.005}


def make_batch(number: int, objects: int) -> TensorDict:
    """Transitions, the same for every method."""
    draw = torch.Generator().manual_seed(1)
    states = make_states(2 * number, objects)
    terminated = (torch.arange(number) % 8 == 1).unsqueeze(-1)
    ends = {"terminated": terminated, "done": terminated}
    following = states[number:].clone().update(ends | {"reward": terminated.float()})
    action = torch.randint(objects + 2, (number,), generator=draw)
    return states[:number].clone().update({"action": action, "next": following})


def make_update(arguments: argparse.Namespace, name: str, method: str, lora: bool):
    """A function that does one update, and what to measure of it."""
    torch.manual_seed(0)
    attention = "eager" if method == "naive, vmap" else "sdpa"
    with torch.device(arguments.device):
        model = MODELS[name]().to(getattr(torch, arguments.dtype)).eval()
    model.set_attn_implementation(attention)
    # Random weights give log-likelihoods hundreds apart: at a tenth, the policy is no point mass.
    model.get_output_embeddings().weight.data.mul_(0.1)
    options = {}
    if arguments.four_bit:
        model = in_four_bits(model, arguments.tokenizer, arguments.device, adapters(model))
        options["autocast"] = products(arguments)
    elif lora:
        model = get_peft_model(model, adapters(model)).eval()
    if method == "shared, recomputed":
        checkpoint_layers(model)
    trunk = make_trunk(model.to(arguments.device), arguments.tokenizer, **options)
    trunk.to(arguments.device)
    torch.manual_seed(0)
    critic = CandidateCritic(trunk.embedding_dim, (1024, 1024)).to(arguments.device)
    if method in SHARED:
        loss = SACGLAMLoss(
            trunk,
            CandidateActor(),
            critic,
            num_actions=arguments.objects + 2,
            alpha_init=SETTINGS["alpha_init"],
            target_entropy=SETTINGS["target_entropy"],
        )
        loss.make_value_estimator(gamma=SETTINGS["gamma"])
        targets = SoftUpdate(loss, tau=SETTINGS["tau"])
        optimizer = SharedTrunkOptimizer(loss, separate=method == "shared, 2 Adams")
        optimizers = list(optimizer.optimizers.values())

        def step(terms: TensorDict) -> None:
            optimizer.backward(terms)
            optimizer.step()
    else:
        reader = PlainReader(model, trunk.prompt)
        mlp = critic.module.mlp.to(getattr(torch, arguments.dtype))
        loss, targets = make_naive_loss(reader, mlp, vmap=method == "naive, vmap", **SETTINGS)
        parameters = [p for p in loss.parameters() if p.requires_grad]
        optimizers = [torch.optim.Adam(parameters, lr=1e-4, fused=True)]

        def step(terms: TensorDict) -> None:
            optimizers[0].zero_grad()
            sum(terms[key] for key in LOSSES).backward()
            optimizers[0].step()

    def update(batch: TensorDict) -> dict[str, float]:
        terms = loss(batch.clone(False))
        step(terms)
        targets.step()
        return {key: float(terms[key].detach()) for key in LOSSES}

    return update, loss, optimizers


def measure(arguments: argparse.Namespace, name: str, method: str, lora: bool) -> dict:
    """Seconds and memory of one cell of the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    batch = make_batch(arguments.states, arguments.objects).to(arguments.device)
    if arguments.device != "cpu":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
    imported = resident("VmRSS", arguments.device)
    update, loss, optimizers = make_update(arguments, name, method, lora)
    first, times, processor = None, [], []
    for _ in range(arguments.repeats + 1):
        start, begun = time.perf_counter(), time.process_time()
        terms = update(batch)
        if arguments.device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        processor.append(time.process_time() - begun)
        first = terms if first is None else first
    targets = [v for k, v in loss._modules.items() if k.startswith("target_")]
    moments = [v for o in optimizers for s in o.state.values() for v in s.values()]
    peak = resident("VmHWM", arguments.device)
    return {
        "seconds": min(times[1:]),
        "processor": min(processor[1:]),
        "peak": peak / 2**20,
        "above": (peak - imported) / 2**20,
        "targets": sum(t.nbytes for p in targets for t in leaves(p)) / 2**20,
        "Adam": sum(t.nbytes for t in moments) / 2**20,
        "losses": first,
    }


def leaves(params) -> list[torch.Tensor]:
    """Tensors with memory of their own."""
    values = params.values(include_nested=True, leaves_only=True)
    return list({value.data_ptr(): value for value in values}.values())


def resident(field: str, device: str) -> int:
    """Bytes that this process holds (VmRSS) or held at most (VmHWM); on a GPU, that tensors do."""
    if device != "cpu":
        stat = torch.cuda.max_memory_allocated if field == "VmHWM" else torch.cuda.memory_allocated
        return stat()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024


def in_process(*arguments) -> dict:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def table(arguments: argparse.Namespace, name: str, lora: bool) -> None:
    cells = {m: in_process(arguments, name, m, lora) for m in arguments.methods}
    base = cells["shared"]
    columns = ("peak", "above", "targets", "Adam")
    print(f"\n{name}, {'LoRA of rank 16 on q and v' if lora else 'all weights'}")
    print(f"{'':20}{'s/update':>10}{'speed':>8}{'CPU s':>8}{'speed':>8}", end="")
    print("".join(f"{c:>10}" for c in columns), end="")
    print(f"{'memory':>9}{'above':>8}   (MiB)")
    for method, cell in cells.items():
        print(f"{method:20}{cell['seconds']:10.3f}{cell['seconds'] / base['seconds']:8.2f}", end="")
        cpu = cell["processor"]
        print(f"{cpu:8.2f}{cpu / base['processor']:8.2f}", end="")
        print("".join(f"{cell[column]:10.1f}" for column in columns), end="")
        print(f"{cell['peak'] / base['peak']:9.2f}{cell['above'] / base['above']:8.2f}")
    difference = max(
        abs(cell["losses"][key] - base["losses"][key]) for cell in cells.values() for key in LOSSES
    )
    values = ", ".join(f"{key} {base['losses'][key]:.5f}" for key in LOSSES)
    print(f"losses of the first update: {values}; largest difference {difference:.1e}", flush=True)
    if arguments.dtype == "float32" and difference > 1e-4:
        raise AssertionError(f"{name}: losses differ by {difference:.1e}, more than 1e-4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["tiny", "t5-small", "flan-t5-base"]
    parser.add_argument("--models", nargs="+", default=["t5-small"], choices=names)
    parser.add_argument("--methods", nargs="+", default=[*SHARED, *NAIVE], choices=SHARED + NAIVE)
    parser.add_argument("--train", nargs="+", default=["all", "lora"], choices=["all", "lora"])
    parser.add_argument("--four-bit", action="store_true", help="weights in 4 bits; shared trunk")
    parser.add_argument("--states", type=int, default=16, help="transitions in an update")
    parser.add_argument("--objects", type=int, default=6, help="candidates are two more")
    parser.add_argument("--repeats", type=int, default=3, help="timed updates; the fastest counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    arguments = parser.parse_args()
    arguments.tokenizer = make_tokenizer()  # once: its training is not the same in every process
    arguments.methods = list(dict.fromkeys(["shared", *arguments.methods]))
    if arguments.four_bit and not set(arguments.methods) <= set(SHARED):
        parser.error(f"--four-bit needs --methods of {SHARED}")
    print(
        f"{arguments.states} transitions, {arguments.threads} threads, {arguments.device}, "
        f"{arguments.dtype}, torch {torch.__version__}"
    )
    for name in arguments.models:
        for train in ["lora"] if arguments.four_bit else arguments.train:
            table(arguments, name, lora=train == "lora")


if __name__ == "__main__":
    main()
