"""Adapters by their folder: what they go on, and putting them there."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from contextlib import contextmanager
from pathlib import Path

from peft import PeftModel, get_peft_model_state_dict, prepare_model_for_kbit_training
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from torchrl_glam.models._folder import ADAPTERS, check_folder, read_json


def find_adapters(folder: Path) -> Path | None:
    """The folder, whole, if it is one of adapters alone; None for anything else.

    Raises:
        ValueError: as :func:`~torchrl_glam.models._folder.check_folder` raises it.

    Examples:
        >>> find_adapters(Path("google/flan-t5-base"))
    """
    if not folder.is_dir():
        return None
    check_folder(folder, weights=True)
    return folder.resolve() if (folder / ADAPTERS).exists() else None


def adapter_base(folder: Path, embedded: Collection[str] = ()) -> str:
    """The model that adapters go on, to be loaded from where it is on this machine.

    Args:
        folder: the adapters'.
        embedded: names of models that come with this package, wherever it was installed then.

    Raises:
        FileNotFoundError: if it is a folder that is not there.
        ValueError: if the adapters name no model, if their weights are missing or a pickle, or if
            they ask for a module to be imported.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "gpt2"}')
        >>> _ = (folder / "adapter_model.safetensors").write_text("")
        >>> adapter_base(folder)
        'gpt2'
    """
    config = read_json(folder / ADAPTERS)
    if not (folder / "adapter_model.safetensors").exists():
        raise ValueError(
            f"name ({str(folder)!r}) holds adapters without adapter_model.safetensors: copy it "
            "again, or where they are a pickle (adapter_model.bin), which may run code and is not "
            "opened, write them as safetensors with save_pretrained"
        )
    if config.get("megatron_config") is not None:
        raise ValueError(
            f"name ({str(folder)!r}) asks for a module to be imported (megatron_config in "
            f"{ADAPTERS}), which is never done: set it to null where the adapters do without"
        )
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ValueError(
            f"name ({str(folder)!r}) holds adapters that name no base model: write its folder or "
            f"its id on the hub as base_model_name_or_path into {ADAPTERS}"
        )
    path = Path(base)
    if path.is_dir() or not path.is_absolute():  # a folder, or an id on the hub
        return base
    if path.parent.name == "assets" and path.name in embedded:  # of another installation
        return path.name
    raise FileNotFoundError(
        f"name ({str(folder)!r}) holds adapters of the model {base!r}, which is not there: write "
        f"where it is as base_model_name_or_path into {ADAPTERS}"
    )


def put_adapters(model: PreTrainedModel, folder: Path, quantised: bool) -> PeftModel:
    """The model with adapters on it, which can be trained on.

    Args:
        model: the base model.
        folder: the adapters'.
        quantised: whether the model's weights are held in 4 bits.

    Raises:
        ValueError: if they are those of another model, or damaged.
    """
    if quantised:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    others = f"name ({str(folder)!r}) holds adapters of another model than {type(model).__name__}"
    remedy = "name their own as base_model_name_or_path in adapter_config.json, or copy them again"
    try:
        with safe_open(folder / "adapter_model.safetensors", "pt") as file, _no_warnings():
            given = set(file.keys())
            model = PeftModel.from_pretrained(model, folder, is_trainable=True)
    except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{others}, or damaged ones ({' '.join(str(error).split()[:30])}): {remedy}"
        ) from error
    apart = given ^ get_peft_model_state_dict(model).keys()
    if apart:
        raise ValueError(f"{others} ({sorted(apart)[0]} is in one of them alone): {remedy}")
    return model


@contextmanager
def _no_warnings():
    """Without peft's warning of missing weights, which are an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
