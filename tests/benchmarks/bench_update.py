"""What one SAC update costs: on a shared trunk, and with the language model inside each network.

    python tests/benchmarks/bench_update.py                        # t5-small, all weights and LoRA
    python tests/benchmarks/bench_update.py --models flan-t5-base --states 8 --repeats 3
    python tests/benchmarks/bench_update.py --models flan-t5-base --device cuda --states 64
    python tests/benchmarks/bench_update.py --models tiny --states 128 --train all --autocast
    python tests/benchmarks/bench_update.py --models tiny --train all --autocast --observed 400
    python tests/benchmarks/bench_update.py --models tiny --states 4   # a smoke run: seconds

Random weights on architectures of the named sizes, prompts of 86 to 94 tokens, eight candidates,
one row in eight terminal. An update is the losses, their gradients, Adam's step and the targets'
step. Methods:

- shared: `SACGLAMLoss` with `SharedTrunkOptimizer`, one Adam for the summed losses;
- shared, 2 Adams: the same with an Adam for each loss, so two backward passes;
- shared, model's forward: the same as the first, and T5 read by its own forward;
- naive: `DiscreteSACLoss` with the language model inside actor and critic, each prompt encoded
  once and its encoding repeated per candidate (without vmap, which is slower);
- naive, vmap: the same as TorchRL runs it by default (attention is then eager: the fused one of the
  CPU refuses it).

4-bit weights are left out, as `DiscreteSACLoss` cannot copy them (it re-samples weights in place).

Every cell runs in a process of its own. "MiB" is the most memory that model and updates hold;
"speed" and "memory" compare with the shared trunk. The losses of all methods are compared.
"""

import argparse
import multiprocessing
import time
import warnings

import torch
from scoring_methods import make_model, make_states, memory_of
from tensordict import TensorDict
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, CandidateCritic, make_trunk
from torchrl_glam.models.trunks import encoder_decoder
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer

from flan_t5 import make_tokenizer  # isort: skip (scoring_methods adds the folder of tests)
from naive_sac import PlainReader, make_naive_loss  # isort: skip

OBJECTS = 6
SHARED = ("shared", "shared, 2 Adams", "shared, model's forward")
NAIVE = ("naive", "naive, vmap")
LOSSES = ("loss_actor", "loss_qvalue", "loss_alpha")
ENTROPY = {"alpha_init": 0.05, "target_entropy": 0.01}


def make_batch(number: int, observed: int | None) -> TensorDict:
    """Transitions, the same for every method."""
    draw = torch.Generator().manual_seed(1)
    states = make_states(2 * number, OBJECTS, observed)
    terminated = (torch.arange(number) % 8 == 1).unsqueeze(-1)
    ends = {"terminated": terminated, "done": terminated}
    following = states[number:].clone().update(ends | {"reward": terminated.float()})
    action = torch.randint(OBJECTS + 2, (number,), generator=draw)
    return states[:number].clone().update({"action": action, "next": following})


def make_update(arguments: argparse.Namespace, name: str, method: str, lora: bool):
    """A function that does one update and returns its losses."""
    # Random weights give log-likelihoods hundreds apart: at a tenth, the policy is no point mass.
    model, options = make_model(arguments, name, arguments.tokenizer, lora, scale=0.1)
    model.set_attn_implementation("eager" if method == "naive, vmap" else "sdpa")
    if arguments.autocast:
        options["autocast"] = torch.bfloat16
    if method == "shared, model's forward":
        encoder_decoder.can_read = lambda *_: False
    trunk = make_trunk(model.eval(), arguments.tokenizer, **options).to(arguments.device)
    torch.manual_seed(0)
    critic = CandidateCritic(trunk.embedding_dim, (1024, 1024)).to(arguments.device)
    if method in SHARED:
        loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=OBJECTS + 2, **ENTROPY)
        loss.make_value_estimator(gamma=0.99)
        targets = SoftUpdate(loss, tau=0.005)
        optimizer = SharedTrunkOptimizer(loss, separate=method == "shared, 2 Adams")
        backward = optimizer.backward
    else:
        reader = PlainReader(model, trunk.prompt)
        mlp = critic.module.mlp.to(getattr(torch, arguments.dtype))
        settings = {"gamma": 0.99, "tau": 0.005, "vmap": method == "naive, vmap", **ENTROPY}
        loss, targets = make_naive_loss(reader, mlp, **settings)
        parameters = [p for p in loss.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True)

        def backward(terms: TensorDict) -> None:
            optimizer.zero_grad()
            sum(terms[key] for key in LOSSES).backward()

    def update(batch: TensorDict) -> dict[str, float]:
        terms = loss(batch.clone(False))
        backward(terms)
        optimizer.step()
        targets.step()
        return {key: float(terms[key].detach()) for key in LOSSES}

    return update


def measure(arguments: argparse.Namespace, name: str, method: str, lora: bool) -> dict:
    """Seconds and memory of one cell of the table, and the losses of the first update."""
    warnings.simplefilter("ignore")
    batch = make_batch(arguments.states, arguments.observed).to(arguments.device)
    found, times = [], []

    def work() -> None:
        update = make_update(arguments, name, method, lora)
        for _ in range(arguments.repeats + 1):
            start = time.perf_counter()
            found.append(update(batch))
            if arguments.device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)

    _, memory = memory_of(work, arguments.device)
    return {"seconds": min(times[1:]), "memory": memory, "losses": found[0]}


def in_process(*arguments) -> dict:
    """:func:`measure` in a process of its own, which cannot be forked where there is a GPU.

    There it is forked from a server that has imported everything and has not met the GPU.
    """
    how = multiprocessing.get_context("fork" if arguments[0].device == "cpu" else "forkserver")
    how.set_forkserver_preload(["__main__", "transformers.models.t5.modeling_t5"])
    with how.Pool(1) as pool:
        return pool.apply(measure, arguments)


def table(arguments: argparse.Namespace, name: str, lora: bool) -> None:
    cells = {m: in_process(arguments, name, m, lora) for m in arguments.methods}
    base = cells["shared"]
    print(f"\n{name}, {'LoRA of rank 16 on q and v' if lora else 'all weights'}")
    print(f"{'':26}{'s/update':>10}{'speed':>8}{'MiB':>10}{'memory':>8}")
    for method, cell in cells.items():
        line = f"{method:26}{cell['seconds']:10.3f}{cell['seconds'] / base['seconds']:8.2f}"
        print(line + f"{cell['memory']:10.1f}{cell['memory'] / base['memory']:8.2f}")
    difference = max(
        abs(cell["losses"][key] - base["losses"][key]) for cell in cells.values() for key in LOSSES
    )
    values = ", ".join(f"{key} {base['losses'][key]:.5f}" for key in LOSSES)
    print(f"losses of the first update: {values}; largest difference {difference:.1e}", flush=True)
    exact = arguments.dtype == "float32" and not arguments.autocast
    if exact and difference > 1e-4:
        raise AssertionError(f"{name}: losses differ by {difference:.1e}, more than 1e-4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["tiny", "t5-small", "flan-t5-base"]
    parser.add_argument("--models", nargs="+", default=["t5-small"], choices=names)
    parser.add_argument("--methods", nargs="+", default=[*SHARED, *NAIVE], choices=SHARED + NAIVE)
    parser.add_argument("--train", nargs="+", default=["all", "lora"], choices=["all", "lora"])
    parser.add_argument("--four-bit", action="store_true", help="weights in 4 bits; shared trunk")
    parser.add_argument("--states", type=int, default=16, help="transitions in an update")
    parser.add_argument("--observed", type=int, help="tokens of an observation; default: up to 75")
    parser.add_argument("--repeats", type=int, default=3, help="timed updates; the fastest counts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--autocast", action="store_true", help="the trunk's products in bfloat16")
    arguments = parser.parse_args()
    arguments.tokenizer = make_tokenizer()  # once: its training is not the same in every process
    arguments.methods = list(dict.fromkeys(["shared", *arguments.methods]))
    if arguments.four_bit and not set(arguments.methods) <= set(SHARED):
        parser.error(f"--four-bit needs --methods of {SHARED}")
    print(
        f"{arguments.states} transitions, {torch.get_num_threads()} threads, {arguments.device}, "
        f"{arguments.dtype}, torch {torch.__version__}"
    )
    for name in arguments.models:
        for train in ["lora"] if arguments.four_bit else arguments.train:
            table(arguments, name, lora=train == "lora")


if __name__ == "__main__":
    main()
