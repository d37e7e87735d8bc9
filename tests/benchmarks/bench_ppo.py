"""What PPO adds to the language model: its update beside bare scoring with backward.

    python tests/benchmarks/bench_ppo.py                              # tiny, as the quickstart
    python tests/benchmarks/bench_ppo.py --flan base --batch 32 --objects 6   # Flan-T5-base, LoRA
    python tests/benchmarks/bench_ppo.py --batch 16 --repeats 2       # a smoke run: seconds

Three ways to spend the same batches of random play, in turns, so that other work on the machine
slows them alike:

- bare: the trunk's pass on states and candidates, and backward from the sum of what it writes;
- loss: the same pass under PPOGLAMLoss, and backward from its three losses;
- update: loss, then clipping and Adam, as a step of the recipe.

Printed are states and tokens a second (prompt and candidates, without padding; best and median of
the repeats) and each way's share of the speed of bare, by wall time and by processor time, which
other work on the machine disturbs less. Random weights for Flan-T5, no hub.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictSequential

from torchrl_glam.models import CandidateActor, OnDevice, ScoresOnly, ValueHead, make_trunk
from torchrl_glam.objectives import PPOGLAMLoss
from torchrl_glam.replay import HindsightTransform, close_rollout
from torchrl_glam.runs.build import (
    choose_autocast,
    choose_device,
    make_language_model,
    seed_everything,
)
from torchrl_glam.runs.config import PPOGLAMConfig
from torchrl_glam.runs.environments import make_env

sys.path.insert(0, str(Path(__file__).parents[1]))

from flan_t5 import make_flan_t5  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flan", choices=["micro", "base"], help="Flan-T5 with LoRA, not tiny")
    parser.add_argument("--batch", type=int, default=128, help="states in an update")
    parser.add_argument("--objects", type=int, default=3, help="candidates are two more")
    parser.add_argument("--batches", type=int, default=4, help="different batches a repeat")
    parser.add_argument("--repeats", type=int, default=15, help="rounds of all ways")
    parser.add_argument("--objective", default="clip", choices=["clip", "kl"])
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        config = make_config(arguments, scratch)
        ways, batches, tokens, synchronise = prepare(config, arguments.objective, arguments)
    print(
        f"{config.model if arguments.flan is None else 'flan-t5-' + arguments.flan}, "
        f"{arguments.batch} states of {tokens / arguments.batch:.0f} tokens, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    seconds, processor = measure(ways, batches, arguments.repeats, synchronise)
    bare = seconds["bare"]
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(bare, times, strict=True)]
        busy = statistics.median(processor["bare"]) / statistics.median(processor[name])
        print(
            f"{name:7} states/s {arguments.batch / min(times):9.1f} best, "
            f"{arguments.batch / statistics.median(times):9.1f} median; "
            f"tokens/s {tokens / min(times):10.0f} best; share of bare "
            f"{min(bare) / min(times):.3f} by best, {statistics.median(ratios):.3f} by round, "
            f"{busy:.3f} by processor time"
        )


def make_config(arguments: argparse.Namespace, scratch: str) -> PPOGLAMConfig:
    """Settings of the quickstart, or of the paper for Flan-T5."""
    config = PPOGLAMConfig(
        env={"num_objects": arguments.objects, "sequential": False, "max_steps": 10},
        update_every=arguments.batch * arguments.batches,
        batch_size=arguments.batch,
        num_envs=arguments.batch,
        device=arguments.device,
    )
    if arguments.flan is not None:
        config.model = str(make_flan_t5(Path(scratch) / "flan", arguments.flan))
        config.lora_rank = 16
        config.env |= {"max_steps": 16, "sequential": True}
        config.critic_hidden_sizes = [1024, 1024]
    return config


def prepare(
    config: PPOGLAMConfig, objective: str, arguments: argparse.Namespace
) -> tuple[dict[str, Callable], list[TensorDictBase], float, Callable]:
    """The ways by name, the batches, tokens of one batch, and how to wait for the device."""
    device = choose_device(config.device)
    seed_everything(0)
    autocast = choose_autocast(config.autocast, device)
    model, tokenizer = make_language_model(config, device, autocast)
    trunk = ScoresOnly(make_trunk(model, tokenizer, autocast=autocast))
    actor = CandidateActor(return_log_prob=True)
    value = ValueHead(trunk.trunk.embedding_dim, config.critic_hidden_sizes).to(device)
    loss = PPOGLAMLoss(trunk, actor, value, objective=objective).to(device)
    loss.make_value_estimator(gamma=config.gamma, lmbda=config.lmbda, average_gae=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-6, fused=True)

    with torch.no_grad():
        env, policy = make_env(config, tokenizer), TensorDictSequential(trunk, actor, value)
        rollout = env.rollout(arguments.batches, OnDevice(policy), break_when_any_done=False)
        rows = loss.prepare(HindsightTransform("none").inv(close_rollout(rollout)).to(device))
    batches = list(rows.select(*loss.in_keys).split(config.batch_size))
    pad = tokenizer.pad_token_id
    read = ("goal_tokens", "observation_tokens", "action_tokens")
    tokens = sum((rows[key] != pad).sum().item() for key in read) / len(batches)

    def bare(batch: TensorDictBase) -> None:
        out = trunk(batch.select(*trunk.in_keys))
        (out["log_likelihood"].sum() + out["prompt_embedding"].sum()).backward()
        loss.zero_grad()

    def only_loss(batch: TensorDictBase) -> None:
        terms = loss(batch)
        (terms["loss_objective"] + terms["loss_entropy"] + terms["loss_critic"]).backward()
        loss.zero_grad()

    def update(batch: TensorDictBase) -> None:
        terms = loss(batch)
        (terms["loss_objective"] + terms["loss_entropy"] + terms["loss_critic"]).backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    ways = {"bare": bare, "loss": only_loss, "update": update}
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    return ways, batches, tokens, wait


def measure(
    ways: dict[str, Callable], batches: list[TensorDictBase], repeats: int, synchronise: Callable
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds a batch, of wall and of processor, by way; the first round is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            synchronise()
            start, busy = time.perf_counter(), time.process_time()
            for batch in batches:
                way(batch)
            synchronise()
            if repeat:
                seconds[name].append((time.perf_counter() - start) / len(batches))
                processor[name].append((time.process_time() - busy) / len(batches))
    return seconds, processor


if __name__ == "__main__":
    main()
