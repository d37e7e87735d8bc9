"""Where a run's figures come from: ``run.json``, and ``report.html``, kept up to date."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from torchrl_glam.report import Run, make_page
from torchrl_glam.report.run import CONFIG, PAGE, RECORD, find_episodes
from torchrl_glam.runs.files import replace_file

_PACKAGES = ("torchrl_glam", "torch", "torchrl", "tensordict", "transformers", "peft")
_REST = 200  # a page is written again after so many times what the last one took


class RunRecord:
    """A run's ``report.html``, and ``run.json`` with what the page says beside metrics.

    The page is written again with a row of the metrics, if the run has computed 200 times as long
    since the last one as that took: so pages take at most 0.5 % of a run, on a busy machine too.

    Args:
        folder: of the run.
        unit: what the steps of its metrics count. Default: ``"environment steps"``.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> RunRecord(folder).write([{"step": 32, "success": 0.5}])
        >>> sorted(path.name for path in folder.iterdir())
        ['report.html', 'run.json']
    """

    def __init__(self, folder: str | Path, unit: str = "environment steps") -> None:
        self._folder, self._unit = Path(folder), unit
        self._record: dict[str, Any] | None = None  # until something is written
        self._due = 0.0
        self._started = datetime.now(timezone.utc)

    @property
    def references(self) -> Mapping[str, Sequence[float]]:
        """Success of other policies, by name, once something is written."""
        return {} if self._record is None else self._record["references"]

    def update(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Writes the page of some metrics, if it is time to."""
        if time.thread_time() >= self._due:
            self.write(rows)

    def write(
        self,
        rows: Sequence[Mapping[str, float]],
        references: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Writes the page of some metrics.

        Args:
            rows: the metrics, each with ``"step"``; without any, nothing is written.
            references: success of other policies by name, with the ends of its interval if they
                are known, for this page and later ones. Default: none.

        Raises:
            OSError: if something cannot be written.
        """
        if not rows:
            return
        if self._record is None or references:
            record = self._record or self._begin()
            record["references"] |= dict(references or {})
            replace_file(self._folder / RECORD, json.dumps(record, indent=1) + "\n")
            self._record = record
        started = time.thread_time()
        config = self._folder / CONFIG
        text = config.read_text(encoding="utf-8") if config.is_file() else ""
        name, episodes = self._folder.resolve().name, find_episodes(self._folder)
        run = Run(name, list(rows), text, self._record, episodes)
        replace_file(self._folder / PAGE, make_page(run))
        now = time.thread_time()
        self._due = now + _REST * (now - started)

    def _begin(self) -> dict[str, Any]:
        """The record of the folder so far, with another start."""
        path = self._folder / RECORD
        starts, references = [], {}
        if path.is_file():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # damaged: it begins anew
                record = json.loads(path.read_text(encoding="utf-8"))
                starts, references = list(record["starts"]), dict(record["references"])
        return {
            "unit": self._unit,
            "starts": [
                *starts,
                {"time": f"{self._started:%Y-%m-%d %H:%M:%S} UTC"} | describe_process(),
            ],
            "references": references,
        }


def describe_process() -> dict[str, str]:
    """What this process is: its command, commit, versions and machine.

    Returns:
        ``command``, ``commit`` (of the repository that holds the script, with ``-dirty`` if it was
        changed since; left out where there is none), ``versions``, ``system``, ``processor`` and,
        if there are some, ``GPUs``.

    Examples:
        >>> described = describe_process()
        >>> described["versions"].startswith(f"Python {platform.python_version()}")
        True
    """
    found = {name: _version(name) for name in _PACKAGES}
    versions = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    described = {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "commit": _commit(Path(sys.argv[0]).resolve().parent),
        "versions": f"Python {platform.python_version()}, {versions}",
        "system": platform.platform(),
        "processor": f"{_processor()} (cores: {_cores()}, threads: {torch.get_num_threads()})",
        "GPUs": ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))),
    }
    return {name: value for name, value in described.items() if value}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        said = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        return ""
    return said.stdout.strip()


def _processor() -> str:
    """Its name; Linux keeps it in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
