"""A run's folder, read while it is written, and whoever wrote it."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrl_glam._files import read_json, read_text, shorten
from torchrl_glam.runs.run_folder import CONFIG, METRICS, RECORD


@dataclass(frozen=True)
class Run:
    """A run as its page shows it.

    Args:
        name: of its folder.
        rows: its metrics, by step, at least one row.
        config: its configuration as text. Default: none.
        record: what a :class:`~torchrl_glam.report.record.RunRecord` keeps. Default: nothing.
        episodes: names of pages of episodes in its folder. Default: none.

    Examples:
        >>> Run("seed0", [{"step": 0.0}]).unit
        'environment steps'
    """

    name: str
    rows: list[dict[str, float]]
    config: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    episodes: Sequence[str] = ()

    @property
    def starts(self) -> list[dict[str, Any]]:
        """What the record says of each start: command, commit, versions, machine."""
        starts = self.record.get("starts")
        starts = starts if isinstance(starts, list) else []
        return [start for start in starts if isinstance(start, dict)]

    @property
    def unit(self) -> str:
        """What its steps count."""
        return str(self.record.get("unit", "environment steps"))

    @property
    def pretraining(self) -> str:
        """What the language model was trained on before, as the last start says."""
        return shorten([{}, *self.starts][-1].get("pretraining", "not known"))


def read_run(folder: str | Path) -> Run:
    """Reads the folder of a run of any recipe; a row that is being written does not count yet.

    Args:
        folder: the run's ``output``.

    Raises:
        FileNotFoundError: if there are no metrics in it.
        ValueError: if its files are links or pipes, or hold something else than a run's do.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "metrics.csv").write_text("step,success\\n0,0.25\\n32,0.5\\n64,0.")
        >>> read_run(folder).rows
        [{'step': 0.0, 'success': 0.25}, {'step': 32.0, 'success': 0.5}]
    """
    folder = Path(folder)
    if not (folder / METRICS).exists():
        raise FileNotFoundError(
            f"folder ({str(folder)!r}) holds no {METRICS}: give the folder of a run that has begun"
        )
    rows, record = _read_rows(folder / METRICS), folder / RECORD
    about = read_json(record) if record.exists() else {}
    if not isinstance(about, dict):
        raise ValueError(f"{str(record)!r} must hold an object, not {shorten(about)!r}")
    return describe_run(folder, rows, about)


def describe_run(folder: Path, rows: list[dict[str, float]], record: Mapping[str, Any]) -> Run:
    """A run of these rows and this record, with what else its folder holds."""
    config = folder / CONFIG
    text = read_text(config) if config.exists() else ""
    episodes = sorted(path.name for path in folder.glob("episodes*.html"))  # by time of writing
    return Run(folder.resolve().name, rows, text, record, episodes)


def _read_rows(path: Path) -> list[dict[str, float]]:
    text, rows = read_text(path, most=2**30), []
    whole = text[: text.rfind("\n") + 1]
    try:
        lines = [*csv.DictReader(whole.splitlines())]
    except csv.Error as error:
        raise ValueError(f"{str(path)!r} is no table: {error}") from None
    for line, cells in enumerate(lines, start=2):
        try:
            row = {name: float(cell) for name, cell in cells.items() if cell}
        except (TypeError, ValueError):
            raise ValueError(f"{str(path)!r} has more than numbers in line {line}") from None
        if not math.isfinite(row.get("step", math.nan)):
            raise ValueError(f"{str(path)!r} has no step in line {line}")
        rows.append(row)
    if not rows:
        raise ValueError(f"{str(path)!r} has no rows yet")
    return rows
