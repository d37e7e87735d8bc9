"""Refuses a run whose language model cannot fit the device, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from torchrl_glam.models import load_tokenizer
from torchrl_glam.models.folder import find_adapters
from torchrl_glam.models.loading import EMBEDDED, choose_kind
from torchrl_glam.text import describe_env, token_lengths
from torchrl_glam.training.build import choose_attention, choose_autocast, choose_lora
from torchrl_glam.training.config import RecipeConfig
from torchrl_glam.training.environments import make_bare_env
from torchrl_glam.training.memory_estimate import MemoryEstimate, PassShape, estimate_memory
from torchrl_glam.training.storage import machine_memory


def check_memory(config: RecipeConfig, device: torch.device, most: int | None = None) -> str:
    """Says what a run will need of the device's memory, or why it cannot begin.

    Args:
        config: the run's configuration.
        device: where the language model will be.
        most: bytes that it has. Default: those free on the GPU, or of the machine.

    Returns:
        ``"needs about 9.4 GB of 24.0 GB (...)"``; or that it was not estimated, where adapters are
        loaded from a folder, or the model does not say what it needs without its weights.

    Raises:
        ValueError: if it needs more than there is; says what to change.
        FileNotFoundError, ValueError: also if there is no such model, see
            :func:`~torchrl_glam.models.load_language_model`.

    Examples:
        >>> from torchrl_glam.training.config import SACGLAMConfig
        >>> config = SACGLAMConfig(max_tokens_per_pass=4096)
        >>> check_memory(config, torch.device("cpu"), 10**9)[:12]
        'needs about '
    """
    if config.model not in EMBEDDED and find_adapters(Path(config.model)) is not None:
        return "not estimated, as the model is a folder of adapters"
    choose_kind(config.model)
    most = free_memory(device) if most is None else most
    try:
        estimate = _estimate(config, device)
    except Exception as error:  # whatever a model does with values that are not there
        return f"not estimated ({type(error).__name__}: {' '.join(str(error).split())[:100]})"
    about = str(estimate).replace(" GB (", f" GB of {most / 1e9:.1f} GB (", 1)
    if estimate.total > most:
        raise ValueError(
            f"model ({config.model}) cannot fit the memory of {device}: it needs about {about}. "
            f"{_advice(config, estimate)}"
        )
    return f"needs about {about}"


def free_memory(device: torch.device) -> int:
    """Bytes that a run may take of a device: those free on a GPU, all of the machine on a CPU.

    Examples:
        >>> free_memory(torch.device("cpu")) > 10**8
        True
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(min(machine_memory(), 2**62))


def pass_shape(config: RecipeConfig) -> PassShape:
    """The states that a run reads at a time: as many tokens as it says, or its whole batch.

    Examples:
        >>> from torchrl_glam.training.config import SACGLAMConfig
        >>> pass_shape(SACGLAMConfig(batch_size=64))
        PassShape(states=64, prompt_tokens=15, num_actions=5, action_tokens=2)
    """
    if config.max_tokens_per_pass is not None:
        return PassShape.of_tokens(config.max_tokens_per_pass)
    env = make_bare_env(config, 1, config.seed)
    lengths = {"goal_length": 24, "observation_length": 160, "action_length": 8}
    lengths |= token_lengths(env, load_tokenizer(config.model))
    lengths |= {key: getattr(config, key) for key in lengths if getattr(config, key) is not None}
    prompt = lengths["goal_length"] + lengths["observation_length"]
    num_actions = describe_env(env).num_actions
    env.close(raise_if_closed=False)
    return PassShape(config.batch_size, prompt, num_actions, lengths["action_length"])


def _estimate(config: RecipeConfig, device: torch.device) -> MemoryEstimate:
    autocast = choose_autocast(config.autocast, device)
    return estimate_memory(
        config.model,
        pass_shape(config),
        lora=choose_lora(config),
        load_in_4bit=config.load_in_4bit,
        dtype=getattr(torch, config.dtype),
        compute_dtype=getattr(torch, config.compute_dtype),
        autocast=autocast,
        attention=choose_attention(device, autocast),
        gradient_checkpointing=config.gradient_checkpointing,
        critic_hidden_sizes=tuple(config.critic_hidden_sizes),
        separate=getattr(config, "separate_optimizers", False),
        targets=hasattr(config, "tau"),
        several_passes=config.max_tokens_per_pass is not None,
    )


def _advice(config: RecipeConfig, estimate: MemoryEstimate) -> str:
    """What would help, the largest part first."""
    passes = []
    if not config.gradient_checkpointing:
        passes.append("gradient_checkpointing=true")
    passes.append(
        "max_tokens_per_pass=4096"
        if config.max_tokens_per_pass is None
        else f"max_tokens_per_pass={max(1, config.max_tokens_per_pass // 2)} or less"
    )
    held = []
    if config.lora_rank is None:
        held.append("lora_rank=16 (adapters train, the rest is frozen)")
    if not config.load_in_4bit:
        held.append("load_in_4bit=true (with lora_rank)")
    held.append("a smaller model")
    first = estimate.activations > estimate.weights + estimate.training
    return f"Set {', '.join(passes + held if first else held + passes)}."
