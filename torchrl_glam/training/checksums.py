"""Sums over the files of a folder: whatever is missing, cut short, edited or added is found."""

import hashlib
import json
import os
from pathlib import Path

from torchrl_glam.training.files import plain_files, sync_folder

_SUMS = "checksums.json"
# The kinds of file that a checkpoint consists of; none of them can hold code.
_SUFFIXES = (".json", ".memmap", ".tdc")


def write_checksums(folder: Path) -> None:
    """Write sizes and SHA-256 sums of all files below ``folder``, and flush it all to the disk.

    Args:
        folder: a folder that nobody writes to any more. Gets one more file, ``checksums.json``.

    Raises:
        OSError: if it cannot be written.
    """
    sums = {name: _measure(folder / name, flush=True) for name in _files(folder)}
    with (folder / _SUMS).open("w", encoding="utf-8") as file:
        json.dump(sums, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)


def find_damage(folder: Path) -> str | None:
    """Compare a folder with the sums written by :func:`write_checksums`.

    A link, pipe or device in the folder, or in its place, is damage too, found before any file is
    opened: no checkpoint has one, and reading it could lead elsewhere or never end.

    Returns:
        What is wrong first, in words, or None if every file is as it was written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "value.json").write_text("[1, 2]")
        >>> write_checksums(folder)
        >>> find_damage(folder)
        >>> _ = (folder / "value.json").write_text("[1,")
        >>> find_damage(folder)
        'value.json has 3 bytes instead of 6'
    """
    try:
        found = _files(folder)
    except (ValueError, OSError) as error:
        return str(error)
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        expected = {name: (entry["size"], entry["sha256"]) for name, entry in sums.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{_SUMS} is missing or cannot be read"
    for name in sorted(found.symmetric_difference(expected)):
        return f"{name} is {'missing' if name in expected else 'not part of it'}"
    for name in sorted(found):
        if not name.endswith(_SUFFIXES):
            return f"{name} is of a kind that is never loaded, expected one of {_SUFFIXES}"
        try:
            measured = _measure(folder / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        size, digest = expected[name]
        if measured["size"] != size:
            return f"{name} has {measured['size']} bytes instead of {size}"
        if measured["sha256"] != digest:
            return f"{name} has other content than was written"
    return None


def _files(folder: Path) -> set[str]:
    names = {path.relative_to(folder).as_posix() for path in plain_files(folder)}
    return names - {_SUMS}


def _measure(path: Path, flush: bool = False) -> dict[str, int | str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb+" if flush else "rb") as file:  # only a writable file can be flushed
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
        if flush:
            os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}
