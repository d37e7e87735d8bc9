"""Files that may come from elsewhere: what they are, how they are read, where one writes."""

import json
import os
import stat
from pathlib import Path, PurePath
from typing import IO, Any, Literal

Kind = Literal["file", "folder", "symbolic link", "pipe, socket or device", "nothing"]


def kind_of(path: Path) -> Kind:
    """Tells plain files and folders from links, pipes and devices, without opening anything."""
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
    """The path of a name such as ``"logs/loss.csv"`` below a folder, which may itself be a link.

    Raises ValueError if the name leads out of the folder, or if it or a folder on the way to it is
    a link, a pipe or a device.
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
    """Opens a file below a folder to write it, as ``open`` does, and never through a link.

    Folders are made as needed. Text is written in UTF-8. Raises ValueError as :func:`path_below`.
    """
    path = path_below(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "b" not in mode:
        kwargs.setdefault("encoding", "utf-8")

    def opener(name: str, flags: int) -> int:  # a link that appears meanwhile is refused as well
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    return open(path, mode, opener=opener, **kwargs)


def read_text(path: str | Path, most: int = 16 * 2**20) -> str:
    """Reads a small text file in UTF-8, if it is a plain file of a reasonable size.

    Raises ValueError for a link, pipe, device or folder, more than ``most`` bytes, or no text.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind not in ("file", "nothing"):
        raise ValueError(f"{str(path)!r} is a {kind}, expected a plain file")
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{str(path)!r} has {size:,} bytes, expected at most {most:,}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is no text in UTF-8: {error}") from None


def read_json(path: str | Path, most: int = 16 * 2**20) -> Any:
    """Reads a JSON file by :func:`read_text`; ValueError also if it is not JSON, or too deep."""
    text = read_text(path, most)
    try:
        return json.loads(text)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        reason = shorten(error)
    raise ValueError(f"{str(path)!r} is not JSON ({reason})")


def shorten(text: object, most: int = 300) -> str:
    """A text of somebody else for a message: one line, no control characters, not too long."""
    text = str(text)[: 4 * most]
    line = "".join(c if c.isprintable() else " " * c.isspace() for c in text)
    line = " ".join(line.split())
    return line if len(line) <= most else line[: max(most - 3, 0)] + "..."
