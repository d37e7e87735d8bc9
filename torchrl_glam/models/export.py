"""Trained agents as files that ``transformers``, ``peft`` and ``safetensors`` can read."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, get_args

import torch
from safetensors.torch import save_file
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_glam._files import kind_of, path_below
from torchrl_glam.models.card import CARD, HEADS, README, AgentCard
from torchrl_glam.models.model_card import write_model_card

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ExportKind = Literal["auto", "adapter", "merged"]
# Files that make a folder an export, of either kind: two exports must not mix.
_EXPORTED = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "adapter_config.json",
    "adapter_model*.safetensors",
    HEADS,
    CARD,
    README,
)


def export_agent(
    folder: str | Path,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    critics: TensorDictBase | None = None,
    *,
    card: AgentCard | None = None,
    kind: ExportKind = "auto",
    overwrite: bool = False,
) -> Path:
    """Writes language model, tokenizer, critic heads and card to a folder, and returns it.

    With a card, :func:`~torchrl_glam.models.load_agent` loads trunk, actor and critics again.

    The model is read back without this package: ``"merged"`` by
    ``AutoModelForSeq2SeqLM.from_pretrained(folder)`` (or ``AutoModelForCausalLM``), ``"adapter"``
    by ``PeftModel.from_pretrained(base, folder)``. (On CPUs with AVX512-BF16, plain
    ``bitsandbytes`` reads 4-bit weights in bfloat16, so scores differ a little.)
    ``heads.safetensors`` holds ``critic.<number>.<parameter>``, by the names in the critics'
    ``state_dict``.

    Args:
        folder: where to write; made if it is not there. Its other files are left alone.
        model: the trained model, with or without adapters. It is not changed.
        tokenizer: its tokenizer.
        critics: their parameters, stacked: ``loss.qvalue_network_params``. Default: no heads.
        card: how the agent reads and scores, and where it was trained; a ``README.md`` is made of
            it. It is written last, so a folder with a card is complete. Default: None, the language
            model and heads alone.
        kind: ``"adapter"`` writes the adapters alone, a few MB; ``"merged"`` adds them to the base
            weights and writes a plain model, with 4-bit weights written out in full, so it scores
            as the agent did; ``"auto"`` is ``"adapter"`` for a model with adapters, else
            ``"merged"``. Default: ``"auto"``.
        overwrite: whether to replace an export in the folder, whatever its kind. Default: False.

    Raises:
        FileExistsError: if the folder holds an export, unless ``overwrite``.
        ValueError: for an unknown ``kind``, for ``"adapter"`` with a model that has none, for
            ``"merged"`` with adapters of tied weights, for a card with another number of critics,
            or if a file that would be written is a link.

    Examples:
        >>> import tempfile
        >>> from transformers import AutoModelForSeq2SeqLM
        >>> from torchrl_glam.models import load_language_model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = export_agent(folder, *load_language_model("tiny"))
        ...     AutoModelForSeq2SeqLM.from_pretrained(folder).config.model_type
        't5'
    """
    if kind not in get_args(ExportKind):
        raise ValueError(f"kind ({kind!r}) must be one of {get_args(ExportKind)}")
    adapted = hasattr(model, "peft_config") and hasattr(model, "get_base_model")
    if adapted and kind == "merged" and _adapts_tied_weights(model):
        raise ValueError(
            f"kind ({kind!r}): adapters of the head or the embeddings, whose weights are one, "
            "cannot be merged into one of them: use 'adapter'"
        )
    if kind == "adapter" and not adapted:
        raise ValueError(
            f"kind ({kind!r}) needs a model with adapters, and every weight of this "
            f"{type(model).__name__} was trained: use 'merged', which writes it whole"
        )
    heads = [] if critics is None else critics.data.flatten_keys(".").unbind(0)
    if card is not None and card.num_critics != len(heads):
        raise ValueError(
            f"card.num_critics ({card.num_critics}) must be {len(heads)}, as many as critics given"
        )
    folder = Path(folder)
    if not overwrite:
        check_no_export(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".export-", dir=folder) as part:
        with torch.random.fork_rng(devices=[]):  # fresh models draw weights
            written = _merged(model) if adapted and kind == "merged" else model
        written.save_pretrained(part)
        tokenizer.save_pretrained(part)
        Path(part, README).unlink(missing_ok=True)  # of peft, with a path of this machine
        if heads:
            weights = {
                f"critic.{index}.{name}": value.cpu().contiguous()
                for index, head in enumerate(heads)
                for name, value in head.items()
            }
            save_file(weights, Path(part, HEADS))
        if card is not None:
            card.write(part)
            write_model_card(part, overwrite=True)
        _move(Path(part), folder)
    return folder


def check_no_export(folder: str | Path, *, models: bool = True) -> None:
    """Raises FileExistsError for a folder with an agent or, with ``models``, a language model."""
    found = [path.name for pattern in _EXPORTED for path in sorted(Path(folder).glob(pattern))]
    agents = (CARD, HEADS, "adapter_config.json")
    found = [name for name in found if name in agents or models and name != README]
    if found:
        raise FileExistsError(
            f"folder ({str(folder)!r}) holds a model or an agent ({found[0]}): choose another "
            "folder, or remove it first (export_agent has overwrite=True)"
        )


def _move(part: Path, folder: Path) -> None:
    """Puts a finished export in place of an earlier one, the card last.

    The earlier one goes first, so that whatever interrupts leaves no two that mix.
    """
    names = sorted((path.name for path in part.iterdir()), key=lambda name: (name == CARD, name))
    for name in names:
        path_below(folder, name)
    for pattern in (*_EXPORTED, "chat_template.jinja"):  # not every tokenizer has one
        for path in folder.glob(pattern):
            path.unlink()
    for name in names:
        if kind_of(folder / name) == "folder":
            shutil.rmtree(folder / name)
        os.replace(part / name, folder / name)


def _adapts_tied_weights(model: PeftModel) -> bool:
    base = model.get_base_model()
    ends = (base.get_input_embeddings(), base.get_output_embeddings())
    wrapped = [hasattr(end, "base_layer") or hasattr(end, "modules_to_save") for end in ends]
    return base.config.tie_word_embeddings and any(wrapped)


def _merged(model: PeftModel) -> PreTrainedModel:
    """A plain model, on the CPU, with the adapters added to the base weights.

    Merging in place would change the agent, and would round a 4-bit weight to 4 bits again. So
    base weights and adapters go into a new model.
    """
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    base = model.get_base_model()
    config = copy.deepcopy(base.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(base)(config).eval()
    plain.load_state_dict(_base_weights(base, plain.state_dict().keys()))
    if getattr(base, "generation_config", None) is not None:
        plain.generation_config = base.generation_config
    config = copy.deepcopy(model.peft_config[model.active_adapter])
    config.init_lora_weights = False  # some initialisations move the base weights
    adapted = get_peft_model(plain, config)
    set_peft_model_state_dict(adapted, get_peft_model_state_dict(model))
    return adapted.merge_and_unload().to(base.dtype)


def _base_weights(base: PreTrainedModel, names) -> dict[str, Tensor]:
    """Weights under the names they had before adapters came, dequantised, on the CPU."""
    weights = dict(base.state_dict())
    for name, parameter in base.named_parameters(remove_duplicate=False):
        if (state := getattr(parameter, "quant_state", None)) is not None:
            from bitsandbytes.functional import dequantize_4bit

            weights[name] = dequantize_4bit(parameter.data, state)
    plain = {k.replace(".base_layer", "").replace(".original_module", ""): k for k in weights}
    return {name: weights[plain[name]].cpu() for name in names}
