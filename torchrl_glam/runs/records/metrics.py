"""Metrics of a run: one table that resuming continues, and TorchRL's loggers beside it."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.record.loggers import get_logger

from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.records.run_record import RunRecord
from torchrl_glam.text import EnvDescription


class MetricsTable:
    """Rows of metrics by environment step, written to ``metrics.csv`` and to TorchRL loggers.

    The table is part of a checkpoint: after resuming, the file has the rows of the checkpoint and
    those that follow, as if the run had never stopped. A row is added to the end of the file and
    reaches the disk; where there are new columns, or another table was loaded, the whole file is
    replaced. The page of the run, ``report.html``, is kept up to date with it, see
    :class:`~torchrl_glam.runs.records.run_record.RunRecord`.

    What cannot be written, for a full disk say, is warned of once for each destination and does
    not end the run: the next row is tried again, ``metrics.csv`` then with all rows before it.

    Args:
        folder: folder of the run.
        backends: TorchRL loggers to feed as well: any of ``"csv"``, ``"tensorboard"``,
            ``"wandb"``, ``"mlflow"``. Default: none.
        name: name of the experiment in those loggers. Default ``"run"``.
        wandb: what ``wandb.init`` is told besides: ``project``, ``entity``, ``mode``, ``name``.
            Default: nothing.
        unit: what ``step`` counts, for the page. Default: ``"environment steps"``.
        write: whether to write anything; without, rows are only kept. Default: True.

    Raises:
        ValueError: if a logger cannot be made; names it.

    Examples:
        >>> import tempfile
        >>> table = MetricsTable(tempfile.mkdtemp())
        >>> table.add(32, {"success": 0.5})
        >>> table.add(64, {"success": 1.0, "loss": 0.25})
        >>> print(table.path.read_text().strip())
        step,success,loss
        32,0.5,
        64,1.0,0.25
    """

    def __init__(
        self,
        folder: str | Path,
        backends: Sequence[str] = (),
        name: str = "run",
        unit: str = "environment steps",
        wandb: Mapping[str, Any] | None = None,
        *,
        write: bool = True,
    ) -> None:
        self.path = Path(folder) / "metrics.csv"
        self._record = RunRecord(folder, unit)
        self.rows: list[dict[str, float]] = []
        self._columns: list[str] | None = None  # of the file, None to write all of it
        self._warned: set[str] = set()
        self._writes = write
        kinds = backends if write else ()
        self._loggers = {kind: _make_logger(kind, folder, name, wandb) for kind in kinds}

    def add(self, step: int, values: dict[str, float]) -> None:
        """Adds a row; ``step`` counts environment steps."""
        self.rows.append({"step": step, **values})
        self._attempt(str(self.path), self._write)
        self._attempt(self._page, self._record.update, self.rows)
        for kind, logger in self._loggers.items():
            for key, value in values.items():
                destination = f"the logger {kind} in folder {str(self.path.parent)!r}"
                self._attempt(destination, logger.log_scalar, key, value, step=step)

    def write_page(self, references: Mapping[str, Sequence[float]] | None = None) -> None:
        """Brings ``report.html`` up to date with the last row.

        Args:
            references: success of other policies by name, with the ends of its interval if they
                are known, for dashed lines in the charts. Default: none.
        """
        self._attempt(self._page, self._record.write, self.rows, references)

    @property
    def references(self) -> Mapping[str, Sequence[float]]:
        """What :meth:`write_page` was told, in this process or in those before a resumption."""
        return self._record.references

    @property
    def _page(self) -> str:
        return str(self.path.with_name("report.html"))

    def _attempt(self, destination: str, write: Callable, *args: Any, **kwargs: Any) -> None:
        if not self._writes:
            return
        try:
            write(*args, **kwargs)
        except Exception as error:  # loggers raise what they like
            if destination not in self._warned:
                self._warned.add(destination)
                warnings.warn(
                    f"metrics cannot be written to {destination} ({error}): the run goes on",
                    stacklevel=3,
                )

    def column(self, name: str) -> tuple[list[float], list[float]]:
        """Steps and values of one metric, where it was measured."""
        chosen = [row for row in self.rows if name in row]
        return [row["step"] for row in chosen], [row[name] for row in chosen]

    def state_dict(self) -> dict[str, Any]:
        """All rows."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the rows of a checkpoint and rewrites the file."""
        self.rows = [dict(row) for row in state_dict["rows"]]
        self._columns = None
        self._attempt(str(self.path), self._write)

    def _write(self) -> None:
        """Brings the file up to date with the newest row."""
        known, self._columns = self._columns, None  # if this fails, all is written again
        names = (name for row in self.rows for name in row) if known is None else self.rows[-1]
        columns = list(dict.fromkeys([*(known or ()), *names]))
        if columns != known:
            replace_file(self.path, _as_csv(columns, self.rows, header=True))
        else:
            with open(self.path, "r+", newline="") as file:
                file.seek(0, os.SEEK_END)
                file.write(_as_csv(columns, self.rows[-1:]))
                file.flush()
                os.fsync(file.fileno())
        self._columns = columns


def _as_csv(columns: list[str], rows: list[dict[str, float]], header: bool = False) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _make_logger(kind: str, folder: str | Path, name: str, wandb: Mapping[str, Any] | None) -> Any:
    told = {key: value for key, value in (wandb or {}).items() if value is not None}
    name = told.pop("name", name) if kind == "wandb" else name
    try:
        return get_logger(kind, logger_name=str(folder), experiment_name=name, wandb_kwargs=told)
    except Exception as error:  # loggers raise what they like
        raise ValueError(f"loggers: {kind} could not be started: {error}") from error


def goals_reached(after: TensorDictBase, success_key: NestedKey = "reward") -> Tensor:
    """Which steps end an episode by reaching its goal.

    An end alone says nothing: falling into a hole is ``terminated`` too. The environment says it,
    by an entry that is positive (or True) on the step that reaches the goal, which ends the
    episode, and on no other.

    Args:
        after: what steps led to, ``"next"``, of any batch shape.
        success_key: the entry, ``[*B]`` or ``[*B, 1]``. Default ``"reward"``.

    Returns:
        ``bool [*B]``.

    Raises:
        KeyError: if there is no such entry.
        ValueError: if it is positive where no episode ends, as rewards are that reward progress.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> done = torch.tensor([[True], [True], [False]])
        >>> after = TensorDict({"done": done, "reward": torch.tensor([[1.0], [0.0], [0.0]])}, [3])
        >>> goals_reached(after)
        tensor([ True, False, False])
    """
    value = after.get(success_key, None)
    if value is None:
        raise KeyError(
            f"key {success_key!r} is missing: success_key must name an entry that is positive, or "
            "True, on the step that reaches the goal"
        )
    done = after["done"].squeeze(-1)
    reached = (value > 0).reshape(done.shape)
    if (reached & ~done).any():
        raise ValueError(
            f"{success_key!r} is positive on a step that does not end an episode, so it does not "
            "say which episodes reach their goal: let the environment write a bool entry that "
            "does, and name it in success_key"
        )
    return reached


class EpisodeStatistics:
    """Success of the episodes that ended since the last call of :meth:`summary`.

    Args:
        kinds: names of the goal kinds, as :func:`~torchrl_glam.text.describe_env` tells them.
            Default: one kind, ``"goal"``.
        kind_key: key of the goal kind ``[*B]``. Default ``"goal_kind"``.
        success_key: entry of ``"next"`` that says which episodes reach their goal, see
            :func:`goals_reached`. Default ``"reward"``.

    Raises:
        ValueError: when a goal kind is none of ``kinds``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> steps = TensorDict({
        ...     "goal_kind": torch.tensor([[0, 0], [1, 1]]),
        ...     "next": {
        ...         "done": torch.tensor([[[False], [True]], [[False], [True]]]),
        ...         "reward": torch.tensor([[[0.0], [1.0]], [[0.0], [0.0]]]),
        ...     },
        ... }, batch_size=[2, 2])
        >>> statistics = EpisodeStatistics(["grasp", "grow"])
        >>> statistics.add(steps)
        >>> statistics.summary()
        {'episodes': 2, 'success': 0.5, 'success/grasp': 1.0, 'success/grow': 0.0}
    """

    def __init__(
        self,
        kinds: Sequence[str] = EnvDescription.goal_kinds,
        kind_key: NestedKey = "goal_kind",
        success_key: NestedKey = "reward",
    ) -> None:
        self._kinds = tuple(kinds)
        self._kind_key, self._success_key = kind_key, success_key
        self._ended: defaultdict[str, int] = defaultdict(int)
        self._reached: defaultdict[str, int] = defaultdict(int)

    def add(self, steps: TensorDictBase) -> None:
        """Counts the episodes that end in a batch of steps of any batch shape."""
        after = steps["next"]
        done, reached_now = after["done"].squeeze(-1), goals_reached(after, self._success_key)
        kinds = steps[self._kind_key][done].tolist()
        if kinds and not 0 <= min(kinds) <= max(kinds) < len(self._kinds):
            raise ValueError(
                f"{self._kind_key!r} is from {min(kinds)} to {max(kinds)}, and must count in the "
                f"{len(self._kinds)} goal kinds {self._kinds}: let the environment's goal_kinds "
                "name them all"
            )
        for kind, reached in zip(kinds, reached_now[done].tolist(), strict=True):
            self._ended[self._kinds[kind]] += 1
            self._reached[self._kinds[kind]] += reached

    def summary(self) -> dict[str, float]:
        """Number of episodes, success over all and by kind; then starts anew."""
        ended = sum(self._ended.values())
        out: dict[str, float] = {"episodes": ended}
        if ended:
            out["success"] = sum(self._reached.values()) / ended
        for kind in self._kinds:
            if self._ended[kind]:
                out[f"success/{kind}"] = self._reached[kind] / self._ended[kind]
        self.clear()
        return out

    def clear(self) -> None:
        """Starts anew."""
        self._ended.clear()
        self._reached.clear()

    def merge(self, state_dict: dict[str, Any]) -> None:
        """Adds the counts of another's :meth:`state_dict`."""
        for counts, name in ((self._ended, "ended"), (self._reached, "reached")):
            for kind, count in state_dict[name].items():
                counts[kind] += count

    def __repr__(self) -> str:
        return f"EpisodeStatistics(kinds={self._kinds}, success_key={self._success_key!r})"

    def state_dict(self) -> dict[str, Any]:
        """Counts since the last summary."""
        return {"ended": dict(self._ended), "reached": dict(self._reached)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the counts."""
        self._ended = defaultdict(int, state_dict["ended"])
        self._reached = defaultdict(int, state_dict["reached"])


def pace(counters: Mapping[str, float], since: Mapping[str, float]) -> dict[str, float]:
    """Updates and seconds so far, and steps and updates a second since an earlier time.

    Args:
        counters: ``"steps"``, ``"updates"`` and ``"seconds"`` of the run so far.
        since: the same at the earlier time.

    Examples:
        >>> now = {"steps": 300, "updates": 20, "seconds": 12.0}
        >>> pace(now, {"steps": 100, "updates": 10, "seconds": 7.0})
        {'updates': 20, 'seconds': 12.0, 'steps_per_second': 40.0, 'updates_per_second': 2.0}
    """
    elapsed = max(counters["seconds"] - since["seconds"], 1e-9)
    return {
        "updates": counters["updates"],
        "seconds": counters["seconds"],
        "steps_per_second": (counters["steps"] - since["steps"]) / elapsed,
        "updates_per_second": (counters["updates"] - since["updates"]) / elapsed,
    }


def policy_lag(recorded_at: torch.Tensor, updates: int, of: str) -> dict[str, float]:
    """How far behind the policy that made some transitions is (SAC-GLAM, section 2.2).

    Args:
        recorded_at: Updates that the policy had had when each transition was recorded, integers of
            any shape.
        updates: Updates that it has had by now.
        of: What the transitions are, to name the metrics.

    Returns:
        Mean and maximum of the number of updates since; the maximum is the age of the oldest.

    Examples:
        >>> policy_lag(torch.tensor([0, 6]), updates=10, of="batch")
        {'policy_lag/batch/mean': 7.0, 'policy_lag/batch/max': 10.0}
    """
    lag = updates - recorded_at.double()
    return {
        f"policy_lag/{of}/mean": lag.mean().item(),
        f"policy_lag/{of}/max": lag.max().item(),
    }
