"""One run, one folder: what must not be there when it begins, and that nobody else writes there."""

from __future__ import annotations

import os
import platform
import stat
import warnings
import weakref
from pathlib import Path

from torchrl_glam.training.files import plain_files

try:
    import fcntl
except ImportError:  # Windows: runs are not kept apart there
    fcntl = None

CHECKPOINTS = "checkpoints"
_LOCK = "run.lock"
# What a run writes, beside the files of loggers.
_RESULTS = ("metrics.csv", "config.yaml", "run.json", "report.html", "model", "replay")
# What a folder of Hugging Face models holds at its top.
_MODELS = ("*.safetensors", "pytorch_model*.bin", "adapter_config.json")


class RunFolder:
    """The folder of a run, claimed from its start to its end.

    A claim is a lock of the system's on the file ``run.lock``, which ends with the process however
    that ends. When it is given back, the lock's file goes, and so do the folders that the claim
    made, if nothing was written to them: a run that was refused leaves nothing behind.

    Args:
        path: the folder.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "run"
        >>> folder, other = RunFolder(path), RunFolder(path)
        >>> folder.claim(resume=False)
        >>> other.claim(resume=False)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        BlockingIOError: folder '...run' is in use by another run (process ...): wait for its end,
        or give another folder as `output`
        >>> folder.release()
        >>> path.exists()
        False
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._release: weakref.finalize | None = None

    def claim(self, *, resume: bool) -> None:
        """Makes the folder and locks it, until :meth:`release` or the end of the process.

        Args:
            resume: whether to go on with the run that the folder holds; else it must hold none.

        Raises:
            BlockingIOError: if another run is at work in the folder; names its process.
            FileExistsError: if not ``resume`` and the folder holds what a run would overwrite.
            ValueError: if something that a run writes is a link or a pipe there.
            OSError: if the folder cannot be made or written to.
        """
        made: list[Path] = []
        locks: list[int] = []
        self._release = weakref.finalize(self, _give_back, self.path, made, locks, os.getpid())
        try:
            _make(self.path / CHECKPOINTS, made)
            locks += _lock(self.path)
            self._require_plain()
            if not resume:
                self._require_no_results()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Gives the folder back; at the end of the process that happens by itself."""
        if self._release is not None:
            self._release()

    def _require_plain(self) -> None:
        try:
            for name in _RESULTS:
                for _ in plain_files(self.path / name):
                    pass
            if (self.path / CHECKPOINTS).is_symlink():
                raise ValueError(f"{CHECKPOINTS} is a symbolic link, expected a folder")
        except ValueError as error:
            raise ValueError(
                f"folder {str(self.path)!r} is not used, as what a run writes there would go "
                f"elsewhere: {error}; put the file itself in its place, or take it away"
            ) from None

    def _require_no_results(self) -> None:
        held = [name for name in _RESULTS if (self.path / name).exists()]
        held += [path.name for pattern in _MODELS for path in sorted(self.path.glob(pattern))]
        if any((self.path / CHECKPOINTS).iterdir()):
            held.insert(0, CHECKPOINTS)
        if held:
            raise FileExistsError(
                f"folder {str(self.path)!r} holds {', '.join(held)}, which a new run would "
                f"overwrite: give another folder as `output`, or go on with the run by `resume`"
            )


def _make(folder: Path, made: list[Path]) -> None:
    """Makes a folder with those above it, and notes each that was not there."""
    if not folder.exists():
        _make(folder.parent, made)
        folder.mkdir(exist_ok=True)
        made.append(folder)


def _lock(folder: Path) -> list[int]:
    """Locks a folder; returns the open file that holds the lock, if the system has locks."""
    if fcntl is None:
        return []
    path = folder / _LOCK
    while True:
        # Neither follows a link nor waits at a pipe.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        lock = os.open(path, flags, 0o666)
        try:
            _acquire(lock, folder)
            # Who held it may have removed the file since it was opened here.
            if path.exists() and os.path.samestat(os.fstat(lock), path.lstat()):
                break
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
    os.ftruncate(lock, 0)
    os.write(lock, f"process {os.getpid()} on {platform.node()}".encode())
    return [lock]


def _acquire(lock: int, folder: Path) -> None:
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        raise ValueError(f"{_LOCK} in folder {str(folder)!r} is no plain file: take it away")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 200).decode(errors="replace") or "process unknown"
        raise BlockingIOError(
            f"folder {str(folder)!r} is in use by another run ({holder}): wait for its end, or "
            "give another folder as `output`"
        ) from None
    except OSError as error:
        warnings.warn(
            f"folder {str(folder)!r} cannot be locked ({error.strerror}): see to it that no other "
            "run uses it",
            stacklevel=2,
        )


def _give_back(folder: Path, made: list[Path], locks: list[int], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the run ends, not the run
        return
    if locks:
        (folder / _LOCK).unlink(missing_ok=True)
    for lock in locks:
        os.close(lock)
    for path in reversed(made):
        try:
            path.rmdir()
        except OSError:  # no longer empty
            break
