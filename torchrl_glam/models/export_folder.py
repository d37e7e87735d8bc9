"""Where an exported agent lies, and what to do where there is none."""

from __future__ import annotations

import os
from pathlib import Path

from torchrl_glam.models.card import CARD


def find_export(folder: Path) -> Path:
    """The folder that holds an agent's card: the one given, or that of a run's export.

    Raises:
        FileNotFoundError: naming what is missing and the remedy.

    Examples:
        >>> import tempfile
        >>> run = Path(tempfile.mkdtemp())
        >>> (run / "model").mkdir()
        >>> _ = (run / "model" / CARD).write_text("{}")
        >>> find_export(run) == run / "model"
        True
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"folder ({str(folder)!r}) is not there: give the folder of a run, or its export "
            "(<run>/model)"
        )
    for place in (folder, folder / "model"):
        if (place / CARD).is_file():
            return place
    run = next((p for p in (folder, folder.resolve().parent) if _is_run(p)), None)
    name = f"folder ({str(folder)!r})"
    if run is not None and _at_work(run):
        raise FileNotFoundError(
            f"{name} belongs to a run that is still at work, and holds no {CARD} yet: the agent is "
            "written at the run's end, wait for it"
        )
    exported = any(
        (place / "tokenizer_config.json").exists() for place in (folder, folder / "model")
    )
    if not exported and run is not None:
        raise FileNotFoundError(
            f"{name} is a run's that exported no agent (no model/{CARD}): it was stopped before "
            "its end, or ran with export=none; go on with it (resume=...), and it writes one"
        )
    if exported:
        raise FileNotFoundError(
            f"{name} holds a language model and no {CARD}, which says how the agent reads and "
            "scores: export it with a card (export_agent(..., card=AgentCard(...))), write one "
            "beside it (AgentCard(...).write(folder)), or load the language model alone "
            "(load_language_model, or model= of a recipe)"
        )
    raise FileNotFoundError(
        f"{name} holds no agent: it has no {CARD}; give the folder of a run, or its export "
        "(<run>/model)"
    )


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() or (folder / "run.lock").is_file()


def _at_work(run: Path) -> bool:
    """Whether another process holds the lock of a run's folder."""
    try:
        import fcntl

        lock = os.open(run / "run.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (ImportError, OSError):  # no such locks, or no such file
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(lock)
