"""Files of a run: replaced as a whole, and never through a link to somewhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchrl_glam._files import kind_of, open_below, path_below


def replace_file(path: Path, text: str) -> None:
    """Writes a text file that appears under its name only when complete and on disk.

    Whatever interrupts this leaves the file as it was; a link of that name is replaced, not
    followed.

    Args:
        path: the file; its folder is made if need be.
        text: its content.

    Raises:
        OSError: if it cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> replace_file(path, "old")
        >>> replace_file(path, "new")
        >>> path.read_text(), [file.name for file in path.parent.iterdir()]
        ('new', ['note.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # of a run that was killed; or somebody's link
    try:
        with part.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def plain_files(path: Path) -> Iterator[Path]:
    """Yields a file, or all files below a folder, and refuses what is neither.

    Nothing is opened and no link is followed: a link may lead out of the folder, to what was never
    checked, and reading a pipe or a device may never end.

    Args:
        path: a file, a folder, or a name that is not there, which has no files.

    Raises:
        ValueError: at the first link, pipe, socket or device; names it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "passwords").symlink_to("/etc/passwd")
        >>> list(plain_files(folder))
        Traceback (most recent call last):
            ...
        ValueError: passwords is a symbolic link, expected plain files and folders only
    """
    yield from _walk(path, path)


def _walk(path: Path, top: Path) -> Iterator[Path]:
    kind = kind_of(path)
    if kind == "file":
        yield path
    elif kind == "folder":
        for child in sorted(path.iterdir()):
            yield from _walk(child, top)
    elif kind != "nothing":
        name = path.name if path == top else path.relative_to(top).as_posix()
        raise ValueError(f"{name} is a {kind}, expected plain files and folders only")


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Says what to do where the system refuses to write a run's files.

    Raises:
        OSError: instead of the system's own, or of PyTorch's RuntimeError that tells of one.

    Examples:
        >>> with writing_to(Path("runs/a")):
        ...     raise OSError(30, "Read-only file system")
        Traceback (most recent call last):
            ...
        OSError: [Errno 30] cannot write (Read-only file system): give as `output` a folder that can
        be written to and has room; what was saved earlier is untouched: 'runs/a'
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = system_error(error)
        if cause is None or cause.errno is None:  # told well enough already, or a bug
            raise
        raise OSError(
            cause.errno,
            f"cannot write ({cause.strerror or cause}): give as `output` a folder that can be "
            "written to and has room; what was saved earlier is untouched",
            str(folder),
        ) from error


@contextmanager
def reserved(
    folder: str | Path, *names: str, key: str = "output", overwrite: bool = False
) -> Iterator[None]:
    """Opens files before the work whose results they take.

    Files that are still empty at the end are removed, with the folders made for them.

    Args:
        folder: where the files will lie.
        *names: of the files.
        key: the setting that names the folder, for errors. Default: ``"output"``.
        overwrite: whether files that are there may be replaced. Default: False.

    Raises:
        FileExistsError: if a file is there and not empty, unless ``overwrite``, or the folder is a
            file.
        ValueError: if a file is a link, a pipe or a device.
        OSError: if a file cannot be made.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with reserved(folder / "a", "results.csv", "results.png"):
        ...     _ = (folder / "a" / "results.csv").write_text("0.5")
        >>> [path.name for path in (folder / "a").iterdir()]
        ['results.csv']
        >>> with reserved(folder / "a", "results.csv"):
        ...     pass
        Traceback (most recent call last):
            ...
        FileExistsError: '...results.csv' is there, and would be overwritten: give another `output`
    """
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    if folder.is_file():
        raise FileExistsError(f"{key} ({str(folder)!r}) is a file: give a folder")
    paths = [path_below(folder, name) for name in names]
    for path in paths:
        if path.is_dir() or (path.exists() and path.stat().st_size and not overwrite):
            raise FileExistsError(
                f"{str(path)!r} is there, and would be overwritten: give another `{key}`"
            )
    try:
        for name in names:
            open_below(folder, name, "a").close()
        yield
    finally:
        for path in paths:
            if path.is_file() and not path.stat().st_size:
                path.unlink()
        with suppress(OSError):  # not empty
            for path in made:
                path.rmdir()


def system_error(error: OSError | RuntimeError) -> OSError | None:
    """The error of the system that this one tells of, if any: PyTorch puts it in words.

    Example:
        >>> system_error(RuntimeError("unable to write file /x: No space left on device (28)"))
        OSError(28, 'No space left on device')
        >>> system_error(RuntimeError("a bug"))
    """
    if isinstance(error, OSError):
        return error
    told = re.search(r"unable to .* file .*: ([^:]+) \((\d+)\)", str(error))
    return None if told is None else OSError(int(told[2]), told[1])
