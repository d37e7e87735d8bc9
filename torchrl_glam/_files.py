"""What a name in a folder stands for, told without opening it or following a link."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Literal

Kind = Literal["file", "folder", "symbolic link", "pipe, socket or device", "nothing"]


def kind_of(path: Path) -> Kind:
    """Tells plain files and folders from what leads elsewhere or may never end when read.

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
