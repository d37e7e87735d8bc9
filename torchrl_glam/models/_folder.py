"""What a model folder may hold: looked at before any of its files is opened.

A folder that came from elsewhere is data. Nothing in it may run as code, hang what reads it, or
lead out of it.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePath

from torchrl_glam._files import kind_of

_INDEX = "model.safetensors.index.json"
ADAPTERS = "adapter_config.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def check_folder(folder: Path, *, weights: bool) -> None:
    """Refuses a model folder with anything in it but plain files that stay within it.

    Args:
        folder: the folder. It may be a link itself: who gives its name means it.
        weights: whether weights are to be read too, or the tokenizer alone.

    Raises:
        FileNotFoundError: if it holds no model.
        ValueError: naming the entry that is refused, and why.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     _ = Path(name, "config.json").symlink_to("/etc/hostname")
        ...     check_folder(Path(name), weights=False)
        Traceback (most recent call last):
            ...
        ValueError: name (...) holds 'config.json', which is a symbolic link: ...
    """
    folder = folder.resolve()
    for entry in sorted(folder.iterdir()):
        _check_plain(folder, entry)
        if entry.is_dir() and entry.name == "additional_chat_templates":  # which tokenizers read
            for template in sorted(entry.iterdir()):
                _check_plain(folder, template)
    whole, adapters = ((folder / name).exists() for name in ("config.json", ADAPTERS))
    if not (whole or adapters):
        raise FileNotFoundError(
            f"name ({str(folder)!r}) is a folder without a config.json: it must hold a model and "
            "its tokenizer, both written by save_pretrained"
        )
    if whole and adapters:
        raise ValueError(
            f"name ({str(folder)!r}) holds a whole model (config.json) and adapters "
            "(adapter_config.json), which would be added to it, perhaps once more: remove the "
            "files of the one that is not meant"
        )
    for name in ("config.json", "tokenizer_config.json"):
        for key, value in read_json(folder / name).items():
            if key.endswith("_file") and isinstance(value, str):
                _check_inside(folder, f"{name}: {key}", value)
    if weights:
        _check_weights(folder)


def _check_weights(folder: Path) -> None:
    for tensor, value in read_json(folder / _INDEX).get("weight_map", {}).items():
        _check_inside(folder, f"{_INDEX}: {tensor}", value)
    if any((folder / name).exists() for name in _PICKLES) and not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"name ({str(folder)!r}) holds its weights as a pickle (pytorch_model.bin), which may "
            "run code and is not opened: write it as safetensors, with save_pretrained, where you "
            "trust it"
        )


def _check_plain(folder: Path, entry: Path) -> None:
    kind = kind_of(entry)
    if kind in ("file", "folder"):
        return
    name = entry.relative_to(folder).as_posix()
    raise ValueError(
        f"name ({str(folder)!r}) holds {name!r}, which is a {kind}: "
        "plain files are read only (give a model of the hub's cache by its id, or copy its "
        "folder with cp -rL)"
    )


def _check_inside(folder: Path, where: str, value: object) -> None:
    if not isinstance(value, str) or PurePath(value).name != value or value in ("", "..", "."):
        raise ValueError(
            f"name ({str(folder)!r}) names the file {value!r} ({where}), which is not one of the "
            "folder's own: only those are read"
        )


def read_json(path: Path) -> dict:
    """The JSON of a file, or nothing if it is not there."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}): copy the model again") from error
    return value if isinstance(value, dict) else {}
