"""Recipes as programs: they end by a line that says what was wrong."""

import functools
import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import torch
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torchrl.checkpoint import CheckpointError

from torchrl_glam._files import shorten
from torchrl_glam.runs.config.groups import spell_out, unknown_key
from torchrl_glam.runs.run_folder import RunIsDone

# Errors of settings, files, numbers or memory, whose message says what to do; others are bugs.
_EXPECTED = (
    *(ValueError, OSError, ImportError, FloatingPointError),
    *(CheckpointError, HydraException, OmegaConfBaseException, torch.OutOfMemoryError),
)
_FULL = "HYDRA_FULL_ERROR"
_LOG = logging.getLogger("torchrl_glam")


def _to_console() -> list[logging.Handler]:
    """Logs to the standard output, and warnings to the standard error."""
    told, warned = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
    told.addFilter(lambda entry: entry.levelno < logging.WARNING)
    warned.setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)
    for handler in (told, warned):
        _LOG.addHandler(handler)
    return [told, warned]


def program(main: Callable | None = None, **files: str) -> Callable:
    """Ends a program by a line on what was wrong, and Ctrl-C without a traceback.

    The exit status is 1, and 130 after Ctrl-C. What is no mistake of settings, files or numbers
    keeps its traceback; with the environment variable ``HYDRA_FULL_ERROR=1`` everything does. The
    command line is read as :func:`~torchrl_glam.runs.config.groups.spell_out` says.

    Args:
        main: the function that is the program; it is given the arguments of the call.
        **files: ``config_path`` and ``config_name``, for ``hydra.main`` to decorate it first.

    Examples:
        >>> @program
        ... def main():
        ...     raise ValueError("gamma (2) must be in [0, 1]")
        >>> main()
        Traceback (most recent call last):
            ...
        SystemExit: 1
    """

    if main is None:
        hydrated = hydra.main(version_base=None, **files)
        return lambda main: program(hydrated(_job(main)))

    @functools.wraps(main)
    def run(*arguments: Any) -> None:
        full, given = os.environ.get(_FULL), sys.argv
        os.environ[_FULL] = "1"  # Hydra shortens errors itself, and ends with a hint instead
        handlers = _to_console()
        try:
            sys.argv = [*given[:1], *spell_out(given[1:])]
            main(*arguments)
            if dist.is_initialized():  # an error ends the process instead
                dist.destroy_process_group()
        except KeyboardInterrupt:
            _LOG.warning("Interrupted; the checkpoints saved so far stand.")
            sys.exit(130)
        except RunIsDone as done:
            _LOG.info("%s", done)
        except _EXPECTED as error:
            if full == "1":
                raise
            why = error.__cause__ if isinstance(error, HydraException) else None  # a wrong type
            also = unknown_key(f"{error} {why}") or shorten(why or "")
            words = f"{shorten(error, 2_000)} {also}".strip()
            # in one piece: several processes may speak at once
            sys.stderr.write(
                f"With {_FULL}=1 in the environment the traceback is shown.\n"
                f"{type(error).__name__}: {words}\n"
            )
            sys.exit(1)
        finally:
            for handler in handlers:
                _LOG.removeHandler(handler)
            sys.argv = given
            os.environ.pop(_FULL)
            if full is not None:
                os.environ[_FULL] = full

    return run


def _job(main: Callable[[Any], None]) -> Callable[[Any], None]:
    """Skips a run that is done; in a sweep, logs at once why a run failed."""

    @functools.wraps(main)
    def job(cfg: Any) -> None:
        OmegaConf.clear_cache(cfg)  # of the time, which all runs of a sweep would share
        try:
            main(cfg)
        except RunIsDone as done:
            _LOG.info("%s", done)
        except _EXPECTED as error:
            if _is_sweep():
                _LOG.warning("%s failed: %s", cfg.output, shorten(error, 2_000))
            raise

    return job


def _is_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN


def end_sweep() -> None:
    """Where a run was stopped that is one of several, stops the others too."""
    if _is_sweep():
        raise KeyboardInterrupt


def how_to_resume(folder: Path) -> str:
    """The arguments that resume the present run: its folder, and its configuration again."""
    if not HydraConfig.initialized():
        return f"resume={folder}"
    given = HydraConfig.get()
    own = ("output", "resume")
    kept = [key for key in given.overrides.task if key.split("=")[0] not in own]
    name = ["--config-name", str(given.job.config_name)]  # first: no override may stand before it
    return shlex.join([*name, f"resume={folder}", *kept])
