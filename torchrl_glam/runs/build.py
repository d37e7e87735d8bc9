"""What recipes build first: device, language model, trunk and critic, loss and optimizer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from peft import LoraConfig
from torchrl.objectives import SoftUpdate
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from torchrl_glam.models import (
    CandidateActor,
    CandidateCritic,
    CandidateTrunk,
    EncodedActionsTrunk,
    ObservationCritic,
    check_gradients,
    load_language_model,
    make_critic,
    make_trunk,
)
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.runs.config import RecipeConfig, SACGLAMConfig
from torchrl_glam.text import PromptTemplate


def seed_everything(seed: int) -> None:
    """Seeds the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch within the block; the generators of the CPU and the card in use are put back.

    Examples:
        >>> with seeded(0):
        ...     first = torch.rand(2)
        >>> with seeded(0):
        ...     torch.equal(torch.rand(2), first)
        True
    """
    # By default those of all cards are kept, which begins to use each of them.
    cards = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cards):
        torch.manual_seed(seed)
        yield


def derive_seed(*numbers: int) -> int:
    """A seed for what these numbers name together, such as a run's seed and a process of it.

    Examples:
        >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
        (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def choose_device(name: str) -> torch.device:
    """``"auto"`` is the GPU if there is one, else the CPU.

    Raises:
        ValueError: if the device does not exist on this machine.

    Examples:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if name.startswith("cpu:"):  # torch takes any number
            raise RuntimeError("there is one CPU, cpu")
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device ({name!r}) cannot be used on this machine: {str(error).splitlines()[0]}"
        ) from error


def choose_autocast(setting: str, device: torch.device) -> torch.dtype | None:
    """Type of matrix products for the trunk: bfloat16, or None for that of the weights.

    Args:
        setting: ``"true"``, ``"false"`` or ``"auto"``: bfloat16 where it is native, which is
            about 1.6 times faster on a CPU.
        device: where the language model runs.

    Examples:
        >>> choose_autocast("true", torch.device("cpu"))
        torch.bfloat16
    """
    if setting == "auto":
        native = torch.cpu.get_capabilities() if device.type == "cpu" else {}
        on_cpu = native.get("avx512_bf16", False) or native.get("amx_bf16", False)
        setting = "true" if device.type == "cuda" or on_cpu else "false"
    return torch.bfloat16 if setting == "true" else None


def choose_lora(config: RecipeConfig) -> LoraConfig | None:
    """The adapters that a configuration asks for, or None.

    Examples:
        >>> choose_lora(RecipeConfig()) is None, choose_lora(RecipeConfig(lora_rank=4)).r
        (True, 4)
    """
    if config.lora_rank is None:
        return None
    modules = list(config.lora_target_modules)
    return LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=modules)


def choose_attention(device: torch.device, autocast: torch.dtype | None) -> str | None:
    """Implementation of attention: None for the usual one, ``"eager"`` in bfloat16 on the CPU.

    There the fused kernel goes backward slowly, and eager is 1.4 times faster.

    Examples:
        >>> choose_attention(torch.device("cpu"), torch.bfloat16)
        'eager'
    """
    return "eager" if device.type == "cpu" and autocast is not None else None


def make_language_model(
    config: RecipeConfig, device: torch.device, autocast: torch.dtype | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads the language model that the configuration names, with adapters if it asks for them."""
    return load_language_model(
        config.model,
        lora=choose_lora(config),
        load_in_4bit=config.load_in_4bit,
        dtype=getattr(torch, config.dtype),
        compute_dtype=getattr(torch, config.compute_dtype),
        device=device,
        gradient_checkpointing=config.gradient_checkpointing,
        attention=choose_attention(device, autocast),
    )


def make_template(config: RecipeConfig, tokenizer: PreTrainedTokenizerBase) -> PromptTemplate:
    """The prompt of every recipe, as a user's turn if the configuration asks for it.

    Examples:
        >>> from torchrl_glam.models import load_tokenizer
        >>> make_template(SACGLAMConfig(), load_tokenizer("tiny")) == PromptTemplate()
        True
    """
    template = PromptTemplate()
    return template.as_chat(tokenizer) if config.chat_template else template


def make_recipe_trunk(
    config: RecipeConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    autocast: torch.dtype | None = None,
) -> CandidateTrunk:
    """The trunk on a language model, as the configuration asks for it.

    Examples:
        >>> config = RecipeConfig(normalisation="token_mean")
        >>> make_recipe_trunk(config, *load_language_model("tiny")).likelihood.normalisation
        'token_mean'
    """
    # Few shapes, for each is compiled, or by oneDNN a kernel generated, which takes longer than
    # to use it once.
    generated = autocast is not None and model.device.type == "cpu"
    trunk = make_trunk(
        model,
        tokenizer,
        make_template(config, tokenizer),
        normalisation=config.normalisation,
        score_eos=config.score_eos,
        max_tokens_per_pass=config.max_tokens_per_pass,
        autocast=autocast,
        compile=config.compile,
        pad_to_multiple_of=16 if config.compile else 4 if generated else 1,
    )
    check_gradients(trunk)
    return trunk


def make_trunk_and_critic(
    config: SACGLAMConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    autocast: torch.dtype | None = None,
    *,
    num_actions: int,
) -> tuple[CandidateTrunk | EncodedActionsTrunk, CandidateCritic | ObservationCritic]:
    """The trunk on a language model and the critic's head, as the configuration asks for them.

    Args:
        config: the run's configuration.
        model: the language model.
        tokenizer: its tokenizer.
        autocast: type of matrix products. Default: None, that of the weights.
        num_actions: candidate actions of a state.

    Examples:
        >>> config = SACGLAMConfig(critic_input="encoded-action")
        >>> model, tokenizer = load_language_model("tiny")
        >>> trunk, _ = make_trunk_and_critic(config, model, tokenizer, num_actions=5)
        >>> type(trunk).__name__
        'EncodedActionsTrunk'
    """
    return make_critic(
        make_recipe_trunk(config, model, tokenizer, autocast),
        config.critic_input,
        num_actions=num_actions,
        hidden_sizes=config.critic_hidden_sizes,
    )


def make_sac(
    config: SACGLAMConfig,
    trunk: CandidateTrunk | EncodedActionsTrunk,
    actor: CandidateActor,
    critic: CandidateCritic | ObservationCritic,
    *,
    num_actions: int,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
) -> tuple[SACGLAMLoss, SoftUpdate, SharedTrunkOptimizer]:
    """Loss, target weights and optimizer, as the configuration asks for them.

    Args:
        config: the run's configuration.
        trunk: the trunk.
        actor: the actor's head.
        critic: the critic's.
        num_actions: candidate actions of a state.
        device: where all of it will stay.
        group: processes that train together. Default: None, this one alone.

    Examples:
        >>> config, (model, tokenizer) = SACGLAMConfig(alpha_init=0.05), load_language_model("tiny")
        >>> config.check()
        >>> trunk, critic = make_trunk_and_critic(config, model, tokenizer, num_actions=5)
        >>> options = {"num_actions": 5, "device": torch.device("cpu")}
        >>> loss, _, _ = make_sac(config, trunk, CandidateActor(), critic, **options)
        >>> round(loss.alpha.item(), 4)
        0.05
    """
    loss = SACGLAMLoss(
        trunk,
        actor,
        critic,
        num_actions=num_actions,
        alpha_init=config.alpha_init,
        target_entropy=config.target_entropy,
        munchausen=config.munchausen,
        critic_backprop=config.critic_backprop,
    ).to(device)
    loss.make_value_estimator(gamma=config.gamma)
    targets = SoftUpdate(loss, tau=config.tau)
    optimizer = SharedTrunkOptimizer(
        loss,
        lr_trunk_actor=config.lr_trunk_actor,
        lr_trunk_critic=config.lr_trunk_critic,
        lr_heads=config.lr_heads,
        lr_alpha=config.lr_alpha,
        max_grad_norm=config.max_grad_norm,
        separate=config.separate_optimizers,
        group=group,
    )
    return loss, targets, optimizer
