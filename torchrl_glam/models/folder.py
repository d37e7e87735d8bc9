"""Model folders from elsewhere, looked at before any file of theirs is opened; and adapters.

Such a folder is data. Nothing in it may run as code, hang what reads it, or lead out of it.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from torchrl_glam._files import kind_of, read_json, shorten

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

ADAPTERS = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# Files of weights, of this and other libraries.
_TENSORS = (".safetensors", ".bin", ".pt", ".gguf", ".h5", ".msgpack", ".ot", ".onnx")
# Most bytes of any other file: the largest vocabularies have some 40 MB.
_LARGEST = 2**28
# Most layers or experts that a configuration may ask for.
_MOST_LAYERS = 4_096

# The fields of adapters that are read, and the types of their values. All else must be off.
_ADAPTER_FIELDS: dict[str, tuple[type, ...]] = {
    "r": (int,),
    **dict.fromkeys(("lora_alpha", "lora_dropout"), (int, float)),
    **dict.fromkeys(("bias", "task_type"), (str,)),
    **dict.fromkeys(("fan_in_fan_out", "use_rslora", "use_dora"), (bool,)),
    "init_lora_weights": (bool, str),
    **dict.fromkeys(("target_modules", "exclude_modules", "modules_to_save"), (list,)),
    "layers_to_transform": (list, int),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), (dict,)),
}
_NOTED = ("base_model_name_or_path", "peft_type", "peft_version", "auto_mapping", "revision")


def check_folder(folder: Path, *, weights: bool) -> None:
    """Refuses a model folder with anything in it but plain files that stay within it.

    The folder may itself be a link; ``weights`` tells whether weights are to be read too, or the
    tokenizer alone. Raises FileNotFoundError if it holds no model, and ValueError naming the entry
    that is refused, and why.
    """
    folder = folder.resolve()
    templates = folder.glob("additional_chat_templates/*")  # which tokenizers read
    for entry in sorted([*folder.iterdir(), *templates]):
        _check_plain(folder, entry)
    whole, adapters = ((folder / name).exists() for name in ("config.json", ADAPTERS))
    if not (whole or adapters):
        raise FileNotFoundError(
            f"model ({str(folder)!r}) is a folder without a config.json: it must hold a model and "
            "its tokenizer, both written by save_pretrained"
        )
    if whole and adapters:
        raise ValueError(
            f"model ({str(folder)!r}) holds a whole model (config.json) and adapters "
            "(adapter_config.json), which would be added to it: remove the files of one of them"
        )
    _check_sizes(folder, _read(folder, "config.json"))
    if weights:
        _check_weights(folder)
    for name in ("config.json", "tokenizer_config.json"):
        for key, value in _read(folder, name).items():
            if key == "special_tokens_map_file":  # of the machine that saved it; nothing opens it
                continue
            if key.endswith("_file") and isinstance(value, str):
                _check_inside(folder, f"{name}: {key}", value)


@contextmanager
def without_current_folder() -> Iterator[None]:
    """Within it, Python imports nothing from the current folder, which may be a downloaded one."""
    here, path = os.path.realpath(os.getcwd()), sys.path[:]
    sys.path[:] = [entry for entry in path if os.path.realpath(entry or ".") != here]
    try:
        yield
    finally:
        sys.path[:] = path


def _check_weights(folder: Path) -> None:
    tensors = _read(folder, _INDEX).get("weight_map", {})
    for tensor, value in tensors.items() if isinstance(tensors, dict) else [(_INDEX, tensors)]:
        _check_inside(folder, f"{_INDEX}: {tensor}", value)
    if any((folder / name).exists() for name in _PICKLES) and not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"model ({str(folder)!r}) holds its weights as a pickle (pytorch_model.bin), which may "
            "run code and is not opened: write it as safetensors, with save_pretrained, where you "
            "trust it"
        )


def _check_plain(folder: Path, entry: Path) -> None:
    kind, name = kind_of(entry), entry.relative_to(folder).as_posix()
    if kind not in ("file", "folder"):
        raise ValueError(
            f"model ({str(folder)!r}) holds {name!r}, which is a {kind}: only plain files are read "
            "(give a model of the hub's cache by its id, or copy its folder with cp -rL)"
        )
    tensors = entry.suffix in _TENSORS
    if kind == "file" and not tensors and (size := entry.stat().st_size) > _LARGEST:
        raise ValueError(
            f"model ({str(folder)!r}) holds {name!r} of {size:,} bytes, expected at most "
            f"{_LARGEST:,}: remove it if it is not part of the model"
        )


def _check_inside(folder: Path, where: str, value: object) -> None:
    if not isinstance(value, str) or PurePath(value).name != value or value in ("", "..", "."):
        raise ValueError(
            f"model ({str(folder)!r}) names the file {shorten(repr(value))} ({shorten(where)}), "
            "which is not in the folder: only those are read"
        )


def _check_sizes(folder: Path, config: dict) -> None:
    """Refuses a configuration with so many layers that building the model would take hours."""
    for key, value in config.items():
        if isinstance(value, dict):
            _check_sizes(folder, value)
        number = len(value) if isinstance(value, list) else value
        if not re.search("layer|expert", key) or re.search("size|dim|capacity", key):
            continue
        if isinstance(number, int) and number > _MOST_LAYERS:
            raise ValueError(
                f"model ({str(folder)!r}) has {shorten(key)} of {shorten(number)} in its "
                f"config.json, expected at most {_MOST_LAYERS:,}"
            )


def _read(folder: Path, name: str) -> dict:
    """The entries of a JSON file, none if it is not there."""
    try:
        value = read_json(folder / name)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{error}: copy the model again") from error
    return value if isinstance(value, dict) else {}


def adapter_base(folder: Path, embedded: Collection[str] = ()) -> str:
    """The model that adapters go on, to be loaded from where it is on this machine.

    ``embedded`` are names of models that come with this package, wherever it was installed then.
    Raises FileNotFoundError if it is a folder that is not there, and ValueError if the adapters
    name no model, or if their weights are missing or a pickle.
    """
    if not (folder / _WEIGHTS).exists():
        raise ValueError(
            f"model ({str(folder)!r}) holds adapters without adapter_model.safetensors: copy it "
            "again; adapters in a pickle (adapter_model.bin), which may run code and is not "
            "opened, can be written as safetensors with save_pretrained"
        )
    base = _read(folder, ADAPTERS).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ValueError(
            f"model ({str(folder)!r}) holds adapters that name no base model: write its folder or "
            f"its id on the hub as base_model_name_or_path into {ADAPTERS}"
        )
    path = Path(base)
    if os.path.isdir(path) or not path.is_absolute():  # a folder, or an id on the hub
        return base
    if path.parent.name == "assets" and path.name in embedded:  # of another installation
        return path.name
    raise FileNotFoundError(
        f"model ({str(folder)!r}) holds adapters of the model {shorten(base)!r}, which is not "
        f"there: write where it is as base_model_name_or_path into {ADAPTERS}"
    )


def adapter_settings(given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The arguments of a ``peft.LoraConfig`` among those given; errors name their ``owner``.

    They are read by an allow-list, so that nothing in a folder chooses what is imported: no other
    kind than LoRA, no unknown field, no expression where a list of names belongs.
    """
    from peft import LoraConfig

    defaults = LoraConfig().to_dict()

    def refuse(key: str, expected: str) -> None:
        value = shorten(repr(given.get(key)), 80)
        raise ValueError(f"{owner} has {shorten(key)} ({value}), expected {expected}")

    if given.get("peft_type") != "LORA":
        refuse("peft_type", "LORA: no other adapters are loaded")
    settings = {}
    for key, value in given.items():
        if key in _NOTED or key == "inference_mode" or value is None:
            continue
        if key not in _ADAPTER_FIELDS:
            if value not in (False, [], {}, defaults.get(key)):
                refuse(key, "it to be off (null): such adapters are not loaded")
            continue
        types = _ADAPTER_FIELDS[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            refuse(key, " or ".join(kind.__name__ for kind in types))
        for name in value if isinstance(value, (list, dict)) else []:
            if not isinstance(name, (int, str)) or not re.fullmatch(r"[\w.]{1,200}", str(name)):
                refuse(key, "plain names of modules")
        if key == "init_lora_weights" and value not in (True, False, "gaussian"):
            refuse(key, "true, false or gaussian: others change the base model")
        settings[key] = value
    if not 1 <= settings.get("r", 8) <= 65_536:
        refuse("r", "from 1 to 65536")
    if not all(isinstance(rank, int) for rank in settings.get("rank_pattern", {}).values()):
        refuse("rank_pattern", "whole numbers by module")
    return settings


def put_adapters(model: PreTrainedModel, folder: Path) -> PeftModel:
    """The model with adapters on it, ready to be trained.

    Raises ValueError if they are another model's, damaged, or refused by :func:`adapter_settings`.
    """
    import peft
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import OutOfMemoryError

    settings = adapter_settings(_read(folder, ADAPTERS), f"{ADAPTERS} of model ({str(folder)!r})")
    others = f"model ({str(folder)!r}) holds adapters of another model than {type(model).__name__}"
    remedy = "name their own as base_model_name_or_path in adapter_config.json, or copy them again"
    try:
        weights = load_file(folder / _WEIGHTS)
        model = peft.get_peft_model(model, peft.LoraConfig(**settings))
        with warnings.catch_warnings():  # of missing weights, which are an error here
            warnings.simplefilter("ignore")
            peft.set_peft_model_state_dict(model, weights)
    except OutOfMemoryError:
        raise
    except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{others}, or damaged ones ({shorten(error)}): {remedy}") from error
    apart = weights.keys() ^ peft.get_peft_model_state_dict(model).keys()
    if apart:
        raise ValueError(f"{others} ({shorten(min(apart))} is in one of them alone): {remedy}")
    return model
