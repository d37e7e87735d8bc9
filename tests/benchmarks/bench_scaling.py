"""Environment steps a second with one process and with two, and a model of what any number gives.

    python tests/benchmarks/bench_scaling.py                    # quickstart, about three minutes
    python tests/benchmarks/bench_scaling.py --rounds 4         # a smoke run
    python tests/benchmarks/bench_scaling.py --card-row 1e-3    # with a card's own measurements

A round is what recipes/sac_glam.py does between two looks at its buffer: `update_every` steps of
all environments, storing them, `num_updates` updates. With N processes each has 1/N of environments
and batch. The model adds up, of one process,

    collect = c0 + c1 * environments     store = s0 + s1 * environments
    compute = u0 + u1 * rows             (losses, gradients, Adam, targets; of an update)
    reduce  = 2 (N - 1) * latency + 2 (N - 1) / N * bytes / bandwidth   (of an update; a ring)

c0 to u1 come from one process with the whole batch and from one with half of it, latency and
bandwidth from all-reduces of two sizes between two processes. Then whole rounds of one process and
of two are measured, which the model has not seen, and compared with it.

For cards the same sums are done on paper. Assumptions: an update takes `--card-fixed` seconds, as
kernels are launched one by one, and `--card-row` for each row (Flan-T5-base reads a state of 90
tokens and 24 nodes in 26 GFLOP, an update takes five times that, and a card does 160 TFLOP/s); a
step of environments takes a fifth of both, and what storing takes here; `--latency` and
`--bandwidth` are those of the slowest link, over which go `--trained` weights (adapters of rank 16
once for each loss, and the critic); nothing overlaps, and no process waits for a slower
one. Strong scaling keeps the paper's batch and environments, weak scaling gives each card as many.
"""

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector

from torchrl_glam.models import CandidateActor, ScoresOnly
from torchrl_glam.objectives import GradientReducer
from torchrl_glam.runs.buffer import make_buffer
from torchrl_glam.runs.build import (
    choose_autocast,
    make_language_model,
    make_sac,
    make_trunk_and_critic,
    seed_everything,
)
from torchrl_glam.runs.config import SACGLAMConfig
from torchrl_glam.runs.environments import make_env
from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.text import describe_env

sys.path.insert(0, str(Path(__file__).parents[1]))
from forked_processes import run_processes  # noqa: E402

CPU = torch.device("cpu")
FILLING = 14  # rounds without updates: every environment has ended an episode


@dataclass(frozen=True)
class Costs:
    """Seconds of one process, and of its messages; see above."""

    collect: tuple[float, float]
    store: tuple[float, float]
    compute: tuple[float, float]
    latency: float
    bandwidth: float
    bytes: int

    def round(self, config: SACGLAMConfig, size: int) -> dict[str, float]:
        """Seconds of the parts of a round, with so many processes."""
        envs, rows = config.num_envs / size, config.batch_size / size
        steps = config.update_every / config.num_envs
        ring = 2 * (size - 1) * self.latency
        ring += 2 * (size - 1) / size * self.bytes / self.bandwidth
        return {
            "collect": steps * line(self.collect, envs),
            "store": line(self.store, envs),
            "compute": config.num_updates * line(self.compute, rows),
            "reduce": config.num_updates * ring if size > 1 else 0.0,
        }


def line(coefficients: tuple[float, float], amount: float) -> float:
    return coefficients[0] + coefficients[1] * amount


def through(few: float, seconds_few: float, many: float, seconds_many: float) -> tuple:
    """The line through two measurements, without a negative part."""
    slope = max(0.0, (seconds_many - seconds_few) / (many - few))
    return max(0.0, seconds_many - slope * many), slope


class Run:
    """What recipes/sac_glam.py builds, and its parts with a clock beside them."""

    def __init__(self, ranks: Ranks, config: SACGLAMConfig) -> None:
        self.ranks, self.config, mine = ranks, config, ranks.share(config)
        self.mine, autocast = mine, choose_autocast("auto", CPU)
        seed_everything(config.seed)
        model, tokenizer = make_language_model(config, CPU, autocast)
        env = make_env(mine, tokenizer)
        num_actions = describe_env(env).num_actions
        trunk, critic = make_trunk_and_critic(
            config, model, tokenizer, autocast, num_actions=num_actions
        )
        actor = CandidateActor()
        policy = TensorDictSequential(ScoresOnly(trunk), actor, selected_out_keys=["action"])
        options = {"num_actions": num_actions, "device": CPU, "group": ranks.group}
        self.loss, self.targets, self.optimizer = make_sac(config, trunk, actor, critic, **options)
        ranks.align(self.loss, mine.seed)
        self.buffer = make_buffer(mine, env, Path("runs"), describe_env(env).goal_kind_prior)
        collector = Collector(
            env,
            policy,
            frames_per_batch=mine.update_every,
            total_frames=-1,
            auto_register_policy_transforms=False,
        )
        self.batches = iter(collector)

    def rounds(self, count: int) -> dict[str, float]:
        """Seconds of a round, of its parts and whole; the fastest of each."""
        for _ in range(FILLING):
            self.round(updates=0)
        self.round(updates=self.config.num_updates)
        measured = [self.round(updates=self.config.num_updates) for _ in range(count)]
        return {name: min(one[name] for one in measured) for name in measured[0]}

    def round(self, updates: int) -> dict[str, float]:
        begun = time.perf_counter()
        steps = next(self.batches)
        collected = time.perf_counter()
        self.buffer.extend(steps.reshape(self.mine.num_envs, -1))
        stored = time.perf_counter()
        for _ in range(updates):
            self.optimizer.backward(self.loss(self.buffer.sample()), share=1 / self.ranks.size)
            self.optimizer.step()
            self.targets.step()
        self.ranks.any(False)
        ended = time.perf_counter()
        parts = {"collect": collected - begun, "store": stored - collected}
        return parts | {"update": (ended - stored) / max(updates, 1), "round": ended - begun}


def measure_rounds(config: SACGLAMConfig, rounds: int, size: int) -> dict[str, float]:
    """Seconds of whole rounds; of several processes, of the slowest."""

    def work(ranks: Ranks) -> dict[str, float]:
        return Run(ranks if size > 1 else Ranks(), config).rounds(rounds)

    results = run_processes(work, size)
    return {name: max(result[name] for result in results) for name in results[0]}


def measure_reduce(config: SACGLAMConfig, repeats: int) -> tuple[int, float, float]:
    """Bytes of an update's gradients, and seconds of their sum and of a small one."""

    def work(ranks: Ranks) -> tuple[int, float, float]:
        loss = Run(ranks, config).loss
        everything = [p for p in loss.parameters() if p.requires_grad]
        return (
            sum(4 * p.numel() for p in everything),
            seconds_of_sum(ranks, everything, repeats),
            seconds_of_sum(ranks, [loss.log_alpha], repeats),
        )

    size, large, small = zip(*run_processes(work, 2), strict=True)
    return size[0], max(large), max(small)


def seconds_of_sum(ranks: Ranks, parameters: list, repeats: int) -> float:
    reducer, times = GradientReducer(ranks.group), []
    for _ in range(repeats):
        gradients = {"all": {p: torch.zeros_like(p) for p in parameters}}
        ranks.any(False)  # begin together
        begun = time.perf_counter()
        reducer.sum({"all": parameters}, gradients)
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def measure_costs(config: SACGLAMConfig, rounds: int) -> Costs:
    whole = measure_rounds(config, rounds, 1)
    halves = {key: getattr(config, key) // 2 for key in ("num_envs", "batch_size", "update_every")}
    half = measure_rounds(replace(config, **halves), rounds, 1)
    envs, rows = config.num_envs, config.batch_size
    size, large, small = measure_reduce(config, 5 * rounds)
    return Costs(
        collect=through(envs // 2, half["collect"], envs, whole["collect"]),
        store=through(envs // 2, half["store"], envs, whole["store"]),
        compute=through(rows // 2, half["update"], rows, whole["update"]),
        latency=small / 2,
        bandwidth=size / max(large - small, 1e-9),
        bytes=size,
    )


def compare(costs: Costs, config: SACGLAMConfig, rounds: int) -> None:
    print(
        f"\nHere: {config.num_envs} environments, {config.num_updates} updates of "
        f"{config.batch_size} rows a round, {costs.bytes / 1e6:.1f} MB of gradients, a thread each"
    )
    print(f"latency {1e6 * costs.latency:.0f} us, {costs.bandwidth / 1e9:.2f} GB/s")
    print(
        "processes  collect   store  compute  reduce | predicted  measured   off | steps/s  speed"
    )
    first = None
    for size in (1, 2):
        parts = costs.round(config, size)
        predicted, measured = sum(parts.values()), measure_rounds(config, rounds, size)["round"]
        first = first or measured
        shown = "".join(f"{value:9.4f}" for value in parts.values())
        print(
            f"{size:9}{shown} |{predicted:10.4f}{measured:10.4f}{predicted / measured - 1:6.0%} |"
            f"{config.update_every / measured:8.1f}{first / measured:7.2f}",
            flush=True,
        )


def on_paper(costs: Costs, arguments: argparse.Namespace) -> None:
    paper = SACGLAMConfig(num_envs=32, update_every=32, batch_size=256, num_updates=2)
    trained = arguments.trained * 1e6 * 4
    cards = replace(
        costs,
        collect=(arguments.card_fixed / 5, arguments.card_row / 5),
        compute=(arguments.card_fixed, arguments.card_row),
        latency=arguments.latency,
        bandwidth=arguments.bandwidth * 1e9,
        bytes=int(trained),
    )
    print(
        f"\nOn paper: the paper's configuration, {arguments.trained:.1f} M trained weights; "
        f"an update takes {arguments.card_fixed:.3g} s and {arguments.card_row:.3g} s a row; "
        f"latency {1e6 * arguments.latency:.0f} us, {arguments.bandwidth:.0f} GB/s"
    )
    print("scaling  cards  batch  collect   store  compute  reduce | steps/s  speed  efficiency")
    for kind in ("strong", "weak"):
        first = None
        for size in (1, 8, 64) if kind == "weak" else (1, 8, 32):
            more = size if kind == "weak" else 1
            names = ("num_envs", "update_every", "batch_size")
            config = replace(paper, **{name: more * getattr(paper, name) for name in names})
            parts = cards.round(config, size)
            speed = config.update_every / sum(parts.values())
            first = first or speed
            shown = "".join(f"{value:9.4f}" for value in parts.values())
            print(
                f"{kind:7}{size:7}{config.batch_size:7}{shown} |{speed:8.0f}"
                f"{speed / first:7.1f}{speed / first / size:12.2f}"
            )
    print("64 cards cannot share the paper's 32 environments: strong scaling ends at 32.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds; the fastest counts")
    parser.add_argument("--card-fixed", type=float, default=0.05, help="seconds")
    parser.add_argument("--card-row", type=float, default=8e-4, help="seconds")
    parser.add_argument("--latency", type=float, default=2e-5, help="seconds a message")
    parser.add_argument("--bandwidth", type=float, default=20.0, help="GB a second")
    parser.add_argument("--trained", type=float, default=5.4, help="millions, see above")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = SACGLAMConfig(probe_episodes=0)
    config.check()
    begun = time.perf_counter()
    costs = measure_costs(config, arguments.rounds)
    compare(costs, config, arguments.rounds)
    on_paper(costs, arguments)
    print(f"\n{time.perf_counter() - begun:.0f} s, torch {torch.__version__}")


if __name__ == "__main__":
    main()
