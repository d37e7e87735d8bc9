"""One run, one folder: no other run writes there, and nothing in it is overwritten."""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from torchrl_glam._files import kind_of, read_text
from torchrl_glam.models.card import CARD
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


@contextmanager
def claimed(path: Path, *, resume: bool) -> Iterator[None]:
    """Makes a run's folder, and locks it within the block.

    A run that was refused leaves nothing behind: at the end the lock's file is removed, and so are
    the folders that were made for the run if they are still empty.

    With ``resume`` the folder must hold a run, else none.

    Raises:
        BlockingIOError: if another run is at work in the folder.
        FileExistsError: if not ``resume`` and the folder holds what a run would overwrite.
        FileNotFoundError: if ``resume`` and it holds no run.
        ValueError: if it holds a link or a pipe.
        OSError: if the folder cannot be made or written to.
    """
    if resume and not (path / CONFIG).is_file():
        raise FileNotFoundError(f"resume ({str(path)!r}) must be the folder of a run")
    root, lock = path / CHECKPOINTS, FileLock(path / _LOCK, blocking=False)
    made: list[Path] = []
    try:
        _require_plain(path)
        if not resume:
            _require_no_results(path)
        with writing_to(path):
            made = [p for p in (root, *root.parents) if not p.exists()]
            root.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                raise BlockingIOError(
                    f"folder {str(path)!r} is in use by another run: wait for its end, or give "
                    "another folder as `output`"
                ) from None
        for left_over in root.glob(".step-*"):  # of a run that was killed while saving
            shutil.rmtree(left_over, ignore_errors=True)
        yield
    finally:
        if lock.is_locked:
            (path / _LOCK).unlink(missing_ok=True)
            lock.release()
        with suppress(OSError):  # no longer empty, or never made
            for folder in made:
                folder.rmdir()


def _require_plain(path: Path) -> None:
    """Whatever a run or one of its loggers writes must stay in the folder."""
    try:
        for child in path.resolve().glob("*"):
            if child.name != "wandb":  # which links to its own latest run
                list(plain_files(child))
    except ValueError as error:
        raise ValueError(
            f"folder {str(path)!r} is not used, as what a run writes there could go elsewhere: "
            f"{error}; remove it"
        ) from None


def _require_no_results(path: Path) -> None:
    names = (METRICS, CONFIG, RECORD, PAGE, "model")
    held = [name for name in names if (path / name).exists()]
    # without a checkpoint it is of a run that only began, or was killed then
    held += [CHECKPOINTS] * any((path / CHECKPOINTS).glob("*"))
    held += [file.name for pattern in _MODELS for file in sorted(path.glob(pattern))]
    if held:
        raise FileExistsError(
            f"output ({str(path)!r}) holds {', '.join(held)}, which a new run would overwrite: "
            "give another folder, or resume that run with `resume`"
        )


def stored_settings(folder: str | Path) -> dict[str, Any]:
    """The configuration that a run's folder holds, as plain data: nothing in it is resolved.

    The folder may come from anywhere.

    Raises:
        FileNotFoundError: if it holds none.
        ValueError: if it is a link or a pipe, too large, has aliases, which may grow without end,
            or holds something else than settings. The message shows nothing of its content.
    """
    path = Path(folder) / CONFIG
    if kind_of(path) == "nothing":
        raise FileNotFoundError(f"folder ({str(folder)!r}) holds no {CONFIG}: give that of a run")
    text = read_text(path, most=2**16)
    aliases, settings = False, None
    if text.count("[") + text.count("{") <= 1_000:  # deep nesting takes minutes to read
        with suppress(Exception):  # a tag such as !!timestamp raises what it likes
            aliases = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
            settings = None if aliases else yaml.safe_load(text)
    if aliases:
        raise ValueError(f"{str(path)!r} has aliases, expected plain settings")
    if not isinstance(settings, dict):
        raise ValueError(f"{str(path)!r} is no configuration of a run")
    return settings


def require_same_config(
    saved: Mapping[str, Any], now: Mapping[str, Any], allowed: Collection[str], path: Path
) -> None:
    """Refuses another configuration than that of the checkpoint ``path``, by ValueError.

    Keys ``allowed`` may differ; dots lead into nested dicts, and a key stands for all below it.
    """
    from transformers.utils import flatten_dict  # slow to import

    # As JSON text, in which a tuple equals a list.
    before, after = (
        {str(key): json.dumps(value, default=str) for key, value in flatten_dict(config).items()}
        for config in (saved, now)
    )
    changed = [
        f"{key} was {before.get(key, 'not set')}, is {after.get(key, 'not set')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in allowed)
    ]
    if changed:
        raise ValueError(
            f"config differs from that of {str(path)!r}: {'; '.join(changed)}. Resume with the "
            "same values, or start a new run in another folder"
        )


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
