"""Files that may come from elsewhere: what they are, how they are read, where one writes.

Everything here works on names and small texts with the standard library alone, so that any part of
the package can use it.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path, PurePath
from typing import IO, Any, Literal

Kind = Literal["file", "folder", "symbolic link", "pipe, socket or device", "nothing"]

_MIB = 2**20


def kind_of(path: Path) -> Kind:
    """Tells plain files and folders from links, pipes and devices, without opening anything.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "passwords").symlink_to("/etc/passwd")
        >>> kind_of(folder), kind_of(folder / "passwords"), kind_of(folder / "model")
        ('folder', 'symbolic link', 'nothing')
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return "nothing"
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "symbolic link" if stat.S_ISLNK(mode) else "pipe, socket or device"


def path_below(folder: str | Path, name: str | Path) -> Path:
    """The path of a name below a folder, for a library that writes there itself.

    Args:
        folder: the folder. It may itself be a link.
        name: a file or folder in it, such as ``"results.csv"`` or ``"logs/scalars"``.

    Returns:
        ``folder / name``. Nothing is made or opened.

    Raises:
        ValueError: if the name leads out of the folder, or if it or a folder on the way to it is a
            link, a pipe or a device. For a folder, look at each file in it that will be written.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "logs").symlink_to("/tmp")
        >>> path_below(folder, "logs/loss.csv")
        Traceback (most recent call last):
            ...
        ValueError: '...logs' is a symbolic link: only plain files and folders are written to; ...
    """
    relative = PurePath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise ValueError(f"{str(name)!r} leads out of {str(folder)!r}: give a name inside it")
    path = Path(folder)
    for part in relative.parts:
        path = path / part
        if (kind := kind_of(path)) not in ("file", "folder", "nothing"):
            raise ValueError(
                f"{str(path)!r} is a {kind}: only plain files and folders are written to; remove "
                "it, or choose another folder"
            )
    return path


def open_below(folder: str | Path, name: str | Path, mode: str = "w", **kwargs: Any) -> IO:
    """Opens a file below a folder to write it, and never through a link.

    Folders are made as needed. Text is written in UTF-8. The folder may itself be a link.

    Args:
        folder: the folder.
        name: the file's name in it, such as ``"results.csv"`` or ``"logs/loss.csv"``.
        mode: as for :func:`open`: ``"w"``, ``"x"`` or ``"a"``, with ``"b"`` for bytes. Default:
            ``"w"``.
        **kwargs: others of :func:`open`, such as ``newline``.

    Returns:
        The open file.

    Raises:
        ValueError: as :func:`path_below` raises it.
        OSError: if it cannot be opened.

    Examples:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with open_below(folder, "logs/loss.csv") as file:
        ...     _ = file.write("0.5")
        >>> Path(folder, "logs/loss.csv").read_text()
        '0.5'
    """
    path = path_below(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "b" not in mode:
        kwargs.setdefault("encoding", "utf-8")

    def opener(name: str, flags: int) -> int:  # a link that appears meanwhile is refused as well
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    return open(path, mode, opener=opener, **kwargs)


def read_text(path: str | Path, most: int = 16 * _MIB) -> str:
    """Reads a small text file in UTF-8, if it is a plain file of a reasonable size.

    Args:
        path: the file.
        most: most bytes that are read. Default: 16 MiB.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is a link, pipe, device or folder, larger than that, or no text.

    Examples:
        >>> read_text("/dev/zero")
        Traceback (most recent call last):
            ...
        ValueError: '/dev/zero' is a pipe, socket or device, expected a plain file
    """
    path = Path(path)
    kind = kind_of(path)
    if kind not in ("file", "nothing"):
        raise ValueError(f"{str(path)!r} is a {kind}, expected a plain file")
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{str(path)!r} has {size:,} bytes, expected at most {most:,}")
    return path.read_text(encoding="utf-8")


def read_json(path: str | Path, most: int = 16 * _MIB) -> Any:
    """Reads a JSON file by :func:`read_text`.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: as :func:`read_text` raises it, or if it is not JSON or nested too deeply.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "card.json"
        >>> _ = path.write_text("[" * 100_000)
        >>> read_json(path)
        Traceback (most recent call last):
            ...
        ValueError: '...card.json' is not JSON (nested too deeply)
    """
    text = read_text(path, most)
    try:
        return json.loads(text)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        reason = shorten(error)
    raise ValueError(f"{str(path)!r} is not JSON ({reason})")


def shorten(text: object, most: int = 300) -> str:
    """A text of somebody else for a message: one line, no control characters, not too long.

    Args:
        text: an error, or what ``str`` makes a text of.
        most: most characters. Default: 300.

    Examples:
        >>> shorten("red \\x1b[31m lion\\nblue cat")
        'red [31m lion blue cat'
        >>> shorten("lion" * 100_000, 12)
        'lionlionl...'
    """
    text = str(text)[: 4 * most]
    line = "".join(c if c.isprintable() else " " * c.isspace() for c in text)
    line = " ".join(line.split())
    return line if len(line) <= most else line[: max(most - 3, 0)] + "..."
