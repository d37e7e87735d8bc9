"""One run, one folder: no other run writes there, and nothing in it is overwritten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from torchrl_glam._files import read_text
from torchrl_glam.models.card import CARD
from torchrl_glam.runs.checkpoints.same_config import require_same_config
from torchrl_glam.runs.files import plain_files, writing_to

CHECKPOINTS = "checkpoints"
CONFIG = "config.yaml"
RECORD = "run.json"
PAGE = "report.html"
METRICS = "metrics.csv"
DIVERGED = "diverged.txt"

_LOCK = "run.lock"
_MODELS = ("*.safetensors", "pytorch_model*.bin", "adapter_config.json")


class RunIsDone(Exception):
    """A run that need not be made, as its folder holds it to its end."""


class RunFolder:
    """The folder of a run, locked from its start to its end.

    A run that was refused leaves nothing behind: on release, the lock's file is removed, and so are
    the folders that were made for the run if they are still empty.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._made: list[Path] = []
        self._lock: FileLock | None = None

    def claim(self, *, resume: bool) -> None:
        """Makes the folder and locks it.

        Args:
            resume: whether to resume the run that the folder holds; else it must hold none.

        Raises:
            BlockingIOError: if another run is at work in the folder.
            FileExistsError: if not ``resume`` and the folder holds what a run would overwrite.
            FileNotFoundError: if ``resume`` and it holds no run.
            ValueError: if it holds a link or a pipe.
            OSError: if the folder cannot be made or written to.
        """
        if resume and not (self.path / CONFIG).is_file():
            raise FileNotFoundError(f"resume ({str(self.path)!r}) must be the folder of a run")
        try:
            self._require_plain()
            if not resume:
                self._require_no_results()
            with writing_to(self.path):
                root = self.path / CHECKPOINTS
                self._made = [p for p in (root, *root.parents) if not p.exists()]
                root.mkdir(parents=True, exist_ok=True)
                lock = FileLock(self.path / _LOCK, blocking=False)
                lock.acquire()
                self._lock = lock
            for left_over in root.glob(".step-*"):  # of a run that was killed while saving
                shutil.rmtree(left_over, ignore_errors=True)
        except Timeout:
            raise BlockingIOError(
                f"folder {str(self.path)!r} is in use by another run: wait for its end, or give "
                "another folder as `output`"
            ) from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Gives the folder back."""
        if self._lock is not None:
            (self.path / _LOCK).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None
        for path in self._made:
            try:
                path.rmdir()
            except OSError:  # no longer empty, or never made
                break

    def _require_plain(self) -> None:
        """Whatever a run or one of its loggers writes must stay in the folder."""
        try:
            for child in self.path.resolve().glob("*"):
                if child.name != "wandb":  # which links to its own latest run
                    list(plain_files(child))
        except ValueError as error:
            raise ValueError(
                f"folder {str(self.path)!r} is not used, as what a run writes there could go "
                f"elsewhere: {error}; remove it"
            ) from None

    def _require_no_results(self) -> None:
        names = (METRICS, CONFIG, RECORD, PAGE, "model")
        held = [name for name in names if (self.path / name).exists()]
        # without a checkpoint it is of a run that only began, or was killed then
        held += [CHECKPOINTS] * any((self.path / CHECKPOINTS).glob("*"))
        held += [path.name for pattern in _MODELS for path in sorted(self.path.glob(pattern))]
        if held:
            raise FileExistsError(
                f"output ({str(self.path)!r}) holds {', '.join(held)}, which a new run would "
                "overwrite: give another folder, or resume that run with `resume`"
            )


def stored_settings(folder: str | Path) -> dict[str, Any]:
    """The configuration that a run's folder holds, as plain data: nothing in it is resolved.

    Args:
        folder: the run's, which may come from anywhere.

    Raises:
        FileNotFoundError: if it holds none.
        ValueError: if it is a link or a pipe, too large, has aliases, which may grow without end,
            or holds something else than settings. The message shows nothing of its content.
    """
    path = Path(folder) / CONFIG
    text = read_text(path, most=2**16)
    if text.count("[") + text.count("{") > 1_000:  # deep nesting takes minutes to read
        raise ValueError(f"{str(path)!r} is no configuration of a run")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError(f"{str(path)!r} has aliases, expected plain settings")
        settings = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise ValueError(f"{str(path)!r} is no configuration of a run")
    return settings


def find_unfinished(
    folder: str | Path, settings: Mapping[str, Any], may_change: Collection[str]
) -> str | None:
    """What ``resume=auto`` resumes: the run of these settings in a folder, or None for a new one.

    Raises:
        ValueError: if the folder holds a run of other settings; names the keys that differ.
        RunIsDone: if it holds that run to its last step, or until it diverged.
    """
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        return None
    require_same_config(stored_settings(folder), settings, may_change, folder)
    if (folder / DIVERGED).exists():
        raise RunIsDone(f"{folder} diverged: {read_text(folder / DIVERGED).strip()}")
    metrics = folder / METRICS
    rows = read_text(metrics, most=2**30).splitlines() if metrics.exists() else []
    step = rows[-1].partition(",")[0] if rows else ""
    exported = (folder / "model" / CARD).exists()
    if exported and step.replace(".", "").isdigit() and float(step) >= settings["total_steps"]:
        raise RunIsDone(f"{folder} is done")
    return str(folder)
