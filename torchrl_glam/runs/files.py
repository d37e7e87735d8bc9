"""Files of a run: replaced as a whole, and never through a link to somewhere else."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchrl_glam._files import kind_of, open_below, path_below


def replace_file(path: Path, text: str) -> None:
    """Writes a text file that appears under its name only when complete and on disk.

    Whatever interrupts this leaves the file as it was. A link of that name is replaced, not
    followed. The file's folder is made if need be.
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
    """Yields a file, or all files below a folder; a name that is not there has none.

    Nothing is opened and no link is followed: a link may lead out of the folder, and reading a pipe
    or a device may never end. The first of these, or of sockets, raises ValueError.
    """
    left = [path]  # and no recursion: a stranger's folders may be a thousand deep
    while left:
        kind = kind_of(path := left.pop())
        if kind == "file":
            yield path
        elif kind == "folder":
            left += sorted(path.iterdir(), reverse=True)
        elif kind != "nothing":
            raise ValueError(f"{path} is a {kind}, expected plain files and folders only")


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Says what to do where the system refuses to write a run's files, by OSError.

    PyTorch tells of a full disk by RuntimeError, whose words hold number and reason.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        number, words = getattr(error, "errno", None), getattr(error, "strerror", None)
        if told := re.search(r"unable to .* file .*: ([^:]+) \((\d+)\)", str(error)):
            number, words = int(told[2]), told[1]
        if number is None:  # told well enough already, or a bug
            raise
        raise OSError(
            number,
            f"cannot write ({words}): give as `output` a folder that can be written to and has "
            "room; what was saved earlier is untouched",
            str(folder),
        ) from error


@contextmanager
def reserved(
    folder: str | Path, *names: str, key: str = "output", overwrite: bool = False
) -> Iterator[None]:
    """Opens files below a folder before the work whose results they take.

    Files that are still empty at the end are removed, with the folders made for them. An OSError
    says that one cannot be made, or is there and not empty and must not be overwritten; a
    ValueError that it is a link, a pipe or a device. ``key`` is the setting that names the folder.
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
