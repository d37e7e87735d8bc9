"""Language models and their tokenizers: embedded, from a folder, or from the hub."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError

from torchrl_glam._files import shorten
from torchrl_glam.models.folder import (
    ADAPTERS,
    adapter_base,
    adapter_settings,
    check_folder,
    put_adapters,
    without_current_folder,
)
from torchrl_glam.models.trunks.gradients import checkpoint_layers
from torchrl_glam.models.trunks.reader import text_config

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = ("tiny",)


def load_language_model(
    name: str | Path,
    *,
    lora: LoraConfig | None = None,
    load_in_4bit: bool = False,
    dtype: torch.dtype = torch.float32,
    compute_dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    attention: str | None = None,
    gradient_checkpointing: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads an encoder-decoder or decoder-only language model and its tokenizer.

    Dropout is off (the model is in eval mode): the log-likelihoods that act, and those that are
    trained, are then the same function.

    Loading runs no code of the model's: weights are read from safetensors only; models that bring
    Python code are refused, and so are folders with links, pipes, or files that lie elsewhere.
    Adapters are LoRA's alone.

    Args:
        name: ``"tiny"`` (embedded: no network is needed), a folder written by
            ``save_pretrained``, or the id of a model on the hub (``"google/flan-t5-base"``). A
            folder of adapters gives the base model that they name, with them on it.
        lora: train low-rank adapters with this configuration and freeze the rest (Appendix C).
            Default: train every weight.
        load_in_4bit: hold the frozen weights in NF4 with double quantisation (Dettmers et al.,
            2023). Needs ``lora`` or a folder of adapters. Default: False.
        dtype: of the weights; with ``load_in_4bit``, others are float32. Default: float32.
        compute_dtype: in which 4-bit matrices are multiplied; choose float32 on processors and GPUs
            without bfloat16. Default: bfloat16.
        device: where to put the model. Default: the CPU.
        attention: implementation of attention in ``transformers``, ``"sdpa"`` or ``"eager"``.
            Default: ``"sdpa"`` where the model has it, else ``"eager"``, with a warning.
        gradient_checkpointing: compute activations inside the layers again in the backward pass:
            less memory for about a third more time. Such a model cannot be pickled. Default:
            False.

    Returns:
        The model (wrapped by ``peft`` if it has adapters) and its tokenizer.

    Raises:
        FileNotFoundError: if ``name`` is neither embedded, nor a model folder, nor on the hub.
        ValueError: if the model generates no text, lacks tensors, has damaged files, brings code or
            leads out of its folder; if adapters are another model's or ``lora`` is given as well;
            if ``lora`` matches nothing or has no effect; if 4-bit weights or gradient checkpointing
            are not possible; or as :func:`load_tokenizer` raises it.

    Examples:
        >>> model, tokenizer = load_language_model("tiny")
        >>> model.config.is_encoder_decoder
        True
    """
    adapters = None
    if not is_embedded(name) and os.path.isdir(name):
        check_folder(Path(name), weights=True)
        adapters = Path(name).resolve() if Path(name, ADAPTERS).exists() else None
    if adapters is not None and lora is not None:
        raise ValueError(
            f"lora cannot be given for model ({str(name)!r}), which holds adapters already: train "
            "those (lora=None), or export them with kind='merged' and put new ones on that"
        )
    if load_in_4bit and lora is None and adapters is None:
        raise ValueError(
            "load_in_4bit (True) needs lora: 4-bit weights cannot be trained themselves; pass a "
            "peft.LoraConfig or set load_in_4bit=False"
        )
    if lora is not None and not lora.lora_alpha > 0:
        raise ValueError(
            f"lora.lora_alpha ({lora.lora_alpha}) must be above 0: adapters count lora_alpha / r "
            "times, so these would have no effect"
        )
    options = {"attn_implementation": attention, "use_safetensors": True}
    # transformers would load adapters that lie beside a model on the hub, by no list of fields.
    options["adapter_kwargs"] = {"local_files_only": True, "subfolder": "none"}
    if load_in_4bit:
        from transformers import BitsAndBytesConfig

        _check_4bit(torch.device(device))
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute_dtype,
        )
        options["device_map"] = str(device)
    tokens = name
    if adapters is not None:
        name = adapter_base(adapters, EMBEDDED)
        tokens = tokens if any(Path(tokens).glob("tokenizer*")) else name
    tokenizer = load_tokenizer(tokens)
    kind = _choose_kind(name)
    model, report = _load(kind, name, dtype=dtype, output_loading_info=True, **options)
    if missing := sorted(report["missing_keys"]):
        first = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ValueError(
            f"model ({str(name)!r}) lacks {len(missing)} tensors of the model ({first}), which "
            "would be random: copy it again, or choose a model with a language-model head"
        )
    if attention is None and (chosen := text_config(model)._attn_implementation) != "sdpa":
        warnings.warn(
            f"{type(model).__name__} has no attention 'sdpa' and is read by {chosen!r}, which is "
            "slower",
            stacklevel=2,
        )
    if load_in_4bit:
        model = _trainable_in_4bit(model)
    if gradient_checkpointing:
        checkpoint_layers(model)
    if lora is not None:
        model = _with_lora(model, lora)
    elif adapters is not None:
        model = put_adapters(model, adapters)
    if not load_in_4bit:
        model = model.to(device)
    return model.eval(), tokenizer


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer alone.

    A tokenizer without a padding token (GPT-2's, Llama's) pads with its end-of-sequence token,
    which no goal, observation or action may contain then.

    Args:
        name: as in :func:`load_language_model`.

    Raises:
        FileNotFoundError: as :func:`load_language_model` raises it.
        ValueError: if there is neither a padding nor an end-of-sequence token, or no known word.

    Examples:
        >>> load_tokenizer("tiny").tokenize(" Go to red lion")
        [' Go to', ' red lion']
    """
    from transformers import AutoTokenizer

    tokenizer = _load(AutoTokenizer, name)
    if not tokenizer.decode(tokenizer("Goal:").input_ids, skip_special_tokens=True).strip():
        raise ValueError(  # transformers makes an empty one where there is none
            f"model ({str(name)!r}) has no tokenizer, or one that knows no word: save the model's "
            "own next to it (tokenizer.save_pretrained)"
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ValueError(
                f"model ({str(name)!r}) has a tokenizer with neither a padding nor an "
                "end-of-sequence token: set its pad_token to a token that no text contains, and "
                "save it next to the model"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def is_embedded(name: str | Path) -> bool:
    """Whether a model that comes with the package is meant; a path may lead to one's own."""
    own = isinstance(name, Path) and os.path.isdir(name)
    return str(name) in EMBEDDED and not own


def _choose_kind(name: str | Path) -> type:
    """The class of ``transformers`` that loads a model."""
    import transformers

    config = _load(transformers.AutoConfig, name)
    kind, known = transformers.AutoModelForCausalLM, transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if config.is_encoder_decoder:
        kind = transformers.AutoModelForSeq2SeqLM
        known = transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    if type(config) not in known:
        raise ValueError(
            f"model ({str(name)!r}) is a {config.model_type} model, which has no language-model "
            "head: choose an encoder-decoder such as 'google/flan-t5-base', or a decoder-only "
            "one such as 'Qwen/Qwen2.5-0.5B'"
        )
    return kind


def _source(name: str | Path, weights: bool) -> tuple[str, dict[str, bool]]:
    """The folder or hub id to load from, looked at, and options of ``from_pretrained``."""
    if is_embedded(name):
        return str(Path(__file__).parents[1] / "assets" / name), {}
    if os.path.isdir(name):
        check_folder(Path(name), weights=weights)
        return str(name), {}
    return str(name), {} if _hub_answers(str(name)) else {"local_files_only": True}


def _hub_answers(name: str) -> bool:
    """Asks the hub once: ``from_pretrained`` asks for half a minute where there is no network."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(name, timeout=10, files_metadata=False)
    except Exception as error:  # refusals have a response, and from_pretrained puts them in words
        return getattr(error, "response", None) is not None
    return True


def _load(kind: type, name: str | Path, **kwargs):
    weights = kind.__name__.startswith("AutoModel")
    try:
        source, where = _source(name, weights)
        with without_current_folder():
            return kind.from_pretrained(source, trust_remote_code=False, **where, **kwargs)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.path.isdir(name):
            raise  # check_folder names what is missing
        raise FileNotFoundError(
            f"model ({str(name)!r}) could not be loaded: it must be one of {EMBEDDED}, a folder "
            "with a model and its tokenizer, such as recipes/pretrain.py writes, or the id of a "
            f"model on the hub (no network, or no such model). Reason given: {shorten(error)}"
        ) from error
    except RecursionError as error:
        raise ValueError(f"model ({str(name)!r}) has JSON files nested too deeply") from error
    except (torch.OutOfMemoryError, ImportError):
        raise
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"model ({str(name)!r}) has damaged weights, or those of another configuration "
            f"({shorten(error)}): copy the model again"
        ) from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"model ({str(name)!r}) brings Python code of its own (auto_map in its configuration), "
            "which is never run: choose a model that transformers has itself"
        ) from error
    except Exception as error:  # as many kinds as there are entries that may be wrong
        raise ValueError(
            f"model ({str(name)!r}) has a damaged configuration or tokenizer "
            f"({type(error).__name__}: {shorten(error)}): copy the model again"
        ) from error


def _check_4bit(device: torch.device) -> None:
    """Raises ValueError where bitsandbytes cannot hold weights in 4 bits, by trying it."""
    try:
        from bitsandbytes.functional import quantize_4bit

        zeros = torch.zeros(64, 64, device=device)
        quantize_4bit(zeros, quant_type="nf4", compress_statistics=True)
    except ImportError as error:
        raise ValueError(
            "load_in_4bit (True) needs bitsandbytes: pip install 'torchrl_glam[quantised]', or set "
            f"load_in_4bit=False ({shorten(error)})"
        ) from error
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        raise ValueError(
            "load_in_4bit (True) is not possible here: bitsandbytes makes no 4-bit weights on "
            f"device {str(device)!r} ({shorten(error)}); set load_in_4bit=False"
        ) from error


def _trainable_in_4bit(model: PreTrainedModel) -> PreTrainedModel:
    """Prepares a model for adapters, and keeps bitsandbytes from repacking weights.

    On CPUs with AVX512-BF16 it does so at the first pass without gradient, for good, and the kernel
    for repacked weights passes no gradient on: adapters below would silently get none.
    """
    from bitsandbytes.nn import Linear4bit
    from peft import prepare_model_for_kbit_training

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def _with_lora(model: PreTrainedModel, lora: LoraConfig) -> PreTrainedModel:
    from peft import get_peft_model
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    if lora.target_modules is None:  # peft's choice for this kind of model, where it has one
        usual = USUAL.get(model.config.model_type)
        lora = replace(lora, target_modules=usual if isinstance(usual, list) else "all-linear")
    try:
        model = get_peft_model(model, lora)
        [config] = model.peft_config.values()
        if isinstance(config.target_modules, str):  # a pattern
            config.target_modules = sorted(model.targeted_module_names)
        given = config.to_dict().items()
        given = {k: list(v) if isinstance(v, (set, tuple)) else v for k, v in given}
        adapter_settings(given, "lora")  # what cannot be loaded again is refused at once
        return model
    except ValueError as error:
        if "target modules" not in str(error).lower():
            raise
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        leaves = sorted({name.split(".")[-2] for name in names if name.endswith(".weight")})
        raise ValueError(
            f"lora.target_modules ({lora.target_modules}) match no module of the model: its "
            f"weights are in modules named {leaves}"
        ) from error
