"""How far a run has come: its counters, its bar, and the row of metrics of a round."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl._utils import timeit
from tqdm import tqdm

from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.runs.records.statistics import EpisodeStatistics, GoalCoverage
from torchrl_glam.text import EnvDescription


class Progress:
    """Counts the steps, episodes and goals of a run's rounds, and times them.

    It advances ``"steps"`` and ``"seconds"`` of the run's counters.
    """

    def __init__(
        self, config: RecipeConfig, game: EnvDescription, counters: dict[str, float], ranks: Ranks
    ) -> None:
        self._config, self._counters, self._ranks = config, counters, ranks
        self._records: dict[str, Any] = {
            "statistics": EpisodeStatistics(game.goal_kinds, success_key=game.success_key)
        }
        if getattr(config, "hindsight", None) is True:
            self._records["coverage"] = GoalCoverage(game.goal_kinds)
        self.kept = {"counters": counters, **self._records}  # by a checkpoint
        self._row: dict[str, float] = {}

    def start(self, name: str, stack: ExitStack) -> None:
        """Shows the bar, until the stack is left, and starts the clock."""
        total, before = self._config.total_steps, self._counters["steps"]
        shown = {"desc": name, "unit": "step", "disable": not self._ranks.first}
        self.bar = stack.enter_context(tqdm(total=total, initial=before, **shown))
        timeit.erase()  # what an earlier run of this process timed since its last row
        self._since = dict(self._counters)
        self._started = time.perf_counter() - self._counters["seconds"]

    def begin_round(self, steps: TensorDictBase | None) -> None:
        """Counts what was collected, and notes how many updates its policy had had."""
        if steps is not None:
            check_rewards(steps, self._counters)
            for record in self._records.values():
                record.add(steps)
            if "recorded_at" not in steps.keys():  # one policy made all of them
                made_by = torch.full(steps.shape, self._counters["updates"], dtype=torch.int32)
                steps.set("recorded_at", made_by)
        self._counters["steps"] += self._config.update_every

    def log(self, metrics: Mapping[str, float], means: Mapping[str, float]) -> None:
        """Completes this round's metrics; see :meth:`torchrl_glam.runs.run.Run.log`."""
        self._ranks.hand_over(*self._records.values())
        self._row = self._ranks.mean(dict(means)) | dict(metrics)
        for record in self._records.values():
            self._row |= record.summary()
        self._counters["seconds"] = time.perf_counter() - self._started
        now, since = dict(self._counters), self._since
        elapsed = max(now["seconds"] - since["seconds"], 1e-9)
        self._row |= {key: now[key] for key in ("updates", "seconds")}
        for key in ("steps", "updates"):
            self._row[f"{key}_per_second"] = (now[key] - since[key]) / elapsed
        spent = timeit.todict() | timeit.todict(percall=False, prefix="seconds")
        self._row |= {key: value for key, value in spent.items() if value}  # 0: an earlier run's
        timeit.erase()
        self._since = now
        shown = {k: f"{self._row[k]:.2f}" for k in ("success", "entropy") if k in self._row}
        self.bar.set_postfix(shown)

    def end_round(self) -> dict[str, float]:
        """Takes the time, and returns the round's metrics, if there are any."""
        self._counters["seconds"] = time.perf_counter() - self._started
        self.bar.update(self._config.update_every)
        row, self._row = self._row, {}
        return row


def check_rewards(steps: TensorDictBase, counters: Mapping[str, float]) -> None:
    """Refuses rewards that are not finite, before they are stored: mended, the run goes on."""
    reward = steps["next", "reward"].squeeze(-1)
    bad = (~reward.isfinite()).nonzero()
    if len(bad):
        first = bad[0].tolist()
        raise ValueError(
            f"the environment's rewards after step {counters['steps']} are not finite: {len(bad)} "
            f"of {reward.numel()}, the first is {reward[tuple(first)].item()}, at {first} of the "
            "batch. Nothing of it was stored; mend the environment"
        )
