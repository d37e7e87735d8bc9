"""Trained agents as files that ``transformers``, ``peft`` and ``safetensors`` can read."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Literal, get_args

from peft import (
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from safetensors.torch import save_file
from tensordict import TensorDictBase
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from torchrl_glam.models.card import CARD, HEADS, README, AgentCard
from torchrl_glam.models.model_card import write_model_card

ExportKind = Literal["auto", "adapter", "merged"]
# What an export is read by, of either kind.
_EXPORTED = (
    *(
        "config.json",
        "generation_config.json",
        "model*.safetensors",
        "model.safetensors.index.json",
    ),
    *("adapter_config.json", "adapter_model*.safetensors", HEADS, CARD, README),
)


def export_agent(
    folder: str | Path,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    critics: TensorDictBase | None = None,
    *,
    card: AgentCard | None = None,
    kind: ExportKind = "auto",
) -> Path:
    """Writes language model, tokenizer, critic heads and card to a folder.

    With a card, :func:`~torchrl_glam.models.load_agent` makes trunk, actor and critics of it again.

    The model is read back without this package: ``"merged"`` by
    ``AutoModelForSeq2SeqLM.from_pretrained(folder)`` (or ``AutoModelForCausalLM``), ``"adapter"``
    by ``PeftModel.from_pretrained(base, folder)`` on the base model that the agent was made of,
    whose name is in ``adapter_config.json``. (On CPUs with AVX512-BF16, ``bitsandbytes`` reads
    4-bit weights in bfloat16 at inference, with scores a little apart from those of the agent,
    which does not let it.)

    ``heads.safetensors`` holds ``critic.0.<parameter>``, ``critic.1.<parameter>`` and so on, under
    the names that :class:`~torchrl_glam.models.CandidateCritic` and
    :class:`~torchrl_glam.models.ObservationCritic` have in their ``state_dict``.

    Args:
        folder: where to write; made if it is not there. An earlier export in it is replaced,
            whatever its kind; other files are left alone.
        model: the trained model, with or without adapters. It is not changed.
        tokenizer: its tokenizer.
        critics: the critics' parameters, stacked: ``loss.qvalue_network_params``. Default: None,
            no heads.
        card: how the agent reads and scores, and where it was trained. It is written last, so that
            a folder with a card is complete; after it only the ``README.md`` made of it, see
            :func:`~torchrl_glam.models.write_model_card`. Default: None, the language model and
            heads alone.
        kind: ``"adapter"`` writes the adapters alone, a few MB; ``"merged"`` adds them to the base
            weights and writes a plain model, with weights that were in 4 bits written out in full
            (they keep the values that they had in 4 bits, so it scores as the agent did);
            ``"auto"`` is ``"adapter"`` for a model with adapters, else ``"merged"``. Default:
            ``"auto"``.

    Returns:
        The folder.

    Raises:
        ValueError: for an unknown ``kind``, or for ``"adapter"`` with a model that has none.

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
    adapted = isinstance(model, PeftModel)
    if kind == "adapter" and not adapted:
        raise ValueError(
            f"kind ({kind!r}) needs a model with adapters, and every weight of this "
            f"{type(model).__name__} was trained: use 'merged', which writes it whole"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_earlier(folder)
    written = _merged(model) if adapted and kind == "merged" else model
    written.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if critics is not None:
        save_file(_head_weights(critics), folder / HEADS)
    if card is not None:
        card.write(folder)
        write_model_card(folder)
    return folder


def _remove_earlier(folder: Path) -> None:
    """Removes an earlier export: adapters beside a merged model would be added to it once more.

    Before anything is written, so that whatever interrupts leaves no two that mix.
    """
    for pattern in _EXPORTED:
        for path in folder.glob(pattern):
            path.unlink()


def _head_weights(critics: TensorDictBase) -> dict[str, Tensor]:
    """Parameters ``[N, ...]`` of N critics as one entry for each critic and parameter."""
    flat = critics.data.flatten_keys(".")
    return {
        f"critic.{index}.{name}": value.cpu().contiguous()
        for index, critic in enumerate(flat.unbind(0))
        for name, value in critic.items()
    }


def _merged(model: PeftModel) -> PreTrainedModel:
    """A plain model, on the CPU, with the adapters added to the base weights.

    Merging in place would change the agent, and merge a 4-bit weight by rounding it to 4 bits
    once more: both are avoided by putting base weights and adapters into a new model.
    """
    base = model.get_base_model()
    plain = type(base)(_plain_config(base)).eval()
    plain.load_state_dict(_base_weights(base, plain.state_dict().keys()))
    if getattr(base, "generation_config", None) is not None:
        plain.generation_config = base.generation_config
    config = copy.deepcopy(model.peft_config[model.active_adapter])
    config.init_lora_weights = False  # some initialisations move the base weights
    adapted = get_peft_model(plain, config)
    set_peft_model_state_dict(adapted, get_peft_model_state_dict(model))
    return adapted.merge_and_unload().to(base.dtype)


def _plain_config(base: PreTrainedModel):
    config = copy.deepcopy(base.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def _base_weights(base: PreTrainedModel, names) -> dict[str, Tensor]:
    """Weights under the names they had before adapters came, dequantised, on the CPU."""
    weights = dict(base.state_dict())
    for name, parameter in base.named_parameters(remove_duplicate=False):
        if (state := getattr(parameter, "quant_state", None)) is not None:
            weights[name] = _dequantised(parameter, state)
    plain = {k.replace(".base_layer", "").replace(".original_module", ""): k for k in weights}
    return {name: weights[plain[name]].cpu() for name in names}


def _dequantised(parameter: nn.Parameter, state) -> Tensor:
    # Here, because importing it writes a message about kernels, whoever needs 4-bit or not.
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)
