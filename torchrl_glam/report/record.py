"""Where a run's figures come from: ``run.json``, and ``report.html``, kept up to date."""

import contextlib
import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torchrl_glam._files import read_json
from torchrl_glam.report.page import make_page
from torchrl_glam.report.run import describe_run
from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.records.metrics import References, Rows
from torchrl_glam.runs.records.process import describe_process
from torchrl_glam.runs.run_folder import PAGE, RECORD

_REST = 200  # times what the last page took, until the next one is written


class RunRecord:
    """A run's ``report.html``, and ``run.json`` with what the page says besides metrics.

    A new row of the metrics rewrites the page only once the run has computed 200 times as long as
    the last rewrite took, so that pages take at most 0.5 % of a run.

    Args:
        folder: of the run.
        unit: what the steps of its metrics count. Default: ``"environment steps"``.
        pretraining: what the language model was trained on before, if that is known.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> RunRecord(folder).write([{"step": 32, "success": 0.5}])
        >>> sorted(path.name for path in folder.iterdir())
        ['report.html', 'run.json']
    """

    def __init__(
        self, folder: str | Path, unit: str = "environment steps", pretraining: str = ""
    ) -> None:
        self._folder, self._unit = Path(folder), unit
        self._record: dict[str, Any] | None = None  # until something is written
        self._due = 0.0
        self._started = datetime.now(timezone.utc)
        self._about = {"pretraining": pretraining} if pretraining else {}

    def write(self, rows: Rows, references: References | None = None) -> None:
        """Writes the page of some metrics, if it is time to or there are other references.

        Args:
            rows: the metrics, each with ``"step"``; without any, nothing is written.
            references: success of other policies by name, with the ends of its interval if they
                are known, for this page and later ones. Default: none.
        """
        if not rows or (time.thread_time() < self._due and not references):
            return
        if self._record is None or references:
            record = self._record or self._begin()
            record["references"] |= dict(references or {})
            replace_file(self._folder / RECORD, json.dumps(record, indent=1) + "\n")
            self._record = record
        started = time.thread_time()
        run = describe_run(self._folder, list(rows), self._record)
        replace_file(self._folder / PAGE, make_page(run))
        now = time.thread_time()
        self._due = now + _REST * (now - started)

    def _begin(self) -> dict[str, Any]:
        """The record of the folder so far, with another start."""
        starts, references = [], {}
        # nothing there yet, or damaged: it begins anew
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            record = read_json(self._folder / RECORD)
            starts, references = list(record["starts"]), dict(record["references"])
        start = {"time": f"{self._started:%Y-%m-%d %H:%M:%S} UTC", **describe_process()}
        starts.append(start | self._about)
        return {"unit": self._unit, "starts": starts, "references": references}
