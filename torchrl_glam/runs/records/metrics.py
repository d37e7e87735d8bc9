"""Metrics of a run: one table that resuming continues, and TorchRL's loggers."""

import csv
import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torchrl.record.loggers import get_logger

from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.run_folder import METRICS, PAGE

Rows = Sequence[Mapping[str, float]]
References = Mapping[str, Sequence[float]]


class Record(Protocol):
    """A page that shows metrics, such as :class:`~torchrl_glam.report.record.RunRecord`."""

    def write(self, rows: Rows, references: References | None = None) -> None:
        """Writes the page, if it is time to or with references of other policies."""


class MetricsTable:
    """Rows of metrics by environment step, written to ``metrics.csv`` and to TorchRL loggers.

    The table is part of a checkpoint: after resuming, the file has the rows of the checkpoint and
    those that follow, as if the run had never stopped. What cannot be written, for a full disk say,
    is warned of once for each destination; the next row is tried again, ``metrics.csv`` then with
    all rows before it.

    Args:
        folder: folder of the run.
        backends: TorchRL loggers to feed as well: any of ``"csv"``, ``"tensorboard"``,
            ``"wandb"``, ``"mlflow"``. Default: none.
        name: of the experiment in those loggers. Default ``"run"``.
        record: page to keep up to date with the table. Default: None.
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
        *,
        record: Record | None = None,
        write: bool = True,
    ) -> None:
        self.path = Path(folder) / METRICS
        self._record = record
        self.rows: list[dict[str, float]] = []
        self._columns: list[str] | None = None  # of the file, None to write all of it
        self._warned: set[str] = set()
        self._writes = write
        self._loggers = {kind: _make_logger(kind, folder, name) for kind in backends if write}

    def add(self, step: int, values: dict[str, float]) -> None:
        """Adds a row; ``step`` counts environment steps."""
        self.rows.append({"step": step, **values})
        self._attempt(str(self.path), self._write)
        self.write_page()
        for kind, logger in self._loggers.items():
            for key, value in values.items():
                destination = f"the logger {kind} in folder {str(self.path.parent)!r}"
                self._attempt(destination, logger.log_scalar, key, value, step=step)

    def write_page(self, references: References | None = None) -> None:
        """Writes the page as :meth:`torchrl_glam.report.record.RunRecord.write` does, if any."""
        if self._record is not None:
            page = str(self.path.with_name(PAGE))
            self._attempt(page, self._record.write, self.rows, references)

    def close(self) -> None:
        """Ends the loggers, with the error that is handled: another run may begin its own."""
        for kind, logger in self._loggers.items():
            # Logger.close tells no error, and leaves a run of MLflow open. Of all but csv.
            if end := getattr(logger.experiment, "__exit__", None):
                self._attempt(f"the logger {kind}", end, *sys.exc_info())

    def _attempt(self, destination: str, write: Callable, *args: Any, **kwargs: Any) -> None:
        if not self._writes:
            return
        try:
            write(*args, **kwargs)
        except Exception as error:  # loggers raise what they like
            if destination not in self._warned:
                self._warned.add(destination)
                warnings.warn(
                    f"metrics cannot be written to {destination} ({error}): the run continues",
                    stacklevel=3,
                )

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


def _make_logger(kind: str, folder: str | Path, name: str) -> Any:
    if kind == "wandb":  # which lets an argument win over the environment
        name = os.environ.get("WANDB_NAME", name)
    try:
        return get_logger(kind, logger_name=str(folder), experiment_name=name)
    except Exception as error:  # loggers raise what they like
        raise ValueError(f"loggers: {kind} could not be started: {error}") from error
