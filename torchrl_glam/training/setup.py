"""What every recipe builds first: device, language model and environments from a configuration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig
from tensordict import NestedKey
from torchrl.data import LazyTensorStorage, RandomSampler
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import TensorStorage
from torchrl.envs import Compose, EnvBase, SelectTransform, TransformedEnv
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from torchrl_glam.envs import (
    OraclePolicy,
    PlaygroundTextEnv,
    PromptTemplate,
    TokenizeText,
    token_lengths,
)
from torchrl_glam.envs.playground.goals import GoalSpace, Split
from torchrl_glam.models import (
    CandidateCritic,
    CandidateTrunk,
    EncodedActionsTrunk,
    ObservationCritic,
    check_gradients,
    load_language_model,
    make_critic,
    make_trunk,
)
from torchrl_glam.replay import (
    CompactStorage,
    GoalKindSampler,
    HindsightRatioSampler,
    PrioritizedGroupSampler,
)
from torchrl_glam.replay.group_sampler import GroupSampler
from torchrl_glam.training.config import RecipeConfig, SACGLAMConfig
from torchrl_glam.training.probe import PlanProbe
from torchrl_glam.training.storage import DiskStorage, check_room


def seed_everything(seed: int) -> None:
    """Seeds the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


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


def make_language_model(
    config: RecipeConfig, device: torch.device, autocast: torch.dtype | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads the language model that the configuration names, with adapters if it asks for them."""
    lora = None
    if config.lora_rank is not None:
        lora = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            target_modules=list(config.lora_target_modules),
        )
    return load_language_model(
        config.model,
        lora=lora,
        load_in_4bit=config.load_in_4bit,
        dtype=getattr(torch, config.dtype),
        compute_dtype=getattr(torch, config.compute_dtype),
        device=device,
        gradient_checkpointing=config.gradient_checkpointing,
        # On the CPU the fused kernel goes backward slowly in bfloat16: eager is 1.4 times faster.
        attention="eager" if device.type == "cpu" and autocast is not None else None,
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
) -> tuple[CandidateTrunk | EncodedActionsTrunk, CandidateCritic | ObservationCritic]:
    """The trunk on a language model and the critic's head, as the configuration asks for them.

    Examples:
        >>> config = SACGLAMConfig(critic_input="encoded-action")
        >>> trunk, _ = make_trunk_and_critic(config, *load_language_model("tiny"))
        >>> type(trunk).__name__
        'EncodedActionsTrunk'
    """
    return make_critic(
        make_recipe_trunk(config, model, tokenizer, autocast),
        config.critic_input,
        num_actions=config.num_objects + 2,
        hidden_sizes=config.critic_hidden_sizes,
    )


def make_env(
    config: RecipeConfig,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    *,
    num_envs: int | None = None,
    split: Split = "train",
    seed: int | None = None,
    keep: Sequence[NestedKey] = (),
) -> TransformedEnv:
    """Playground-Text as collectors want it: token tensors, without text and symbolic state.

    Args:
        config: the run's configuration.
        tokenizer: tokenizer of the language model.
        device: of the environment's tensors.
        num_envs: instances. Default: the configuration's.
        split: ``"train"`` or ``"test"`` goals. Default ``"train"``.
        seed: of the environment. Default: the configuration's.
        keep: entries to keep beside those that every recipe reads. Default: none.
    """
    env = PlaygroundTextEnv(
        num_envs=config.num_envs if num_envs is None else num_envs,
        num_objects=config.num_objects,
        split=split,
        sequential=config.sequential,
        max_steps=config.max_steps,
        seed=config.seed if seed is None else seed,
        device=device,
    )
    template = make_template(config, tokenizer)
    lengths = token_lengths(env, tokenizer, template)
    return TransformedEnv(
        env,
        Compose(
            TokenizeText(tokenizer, template=template, **lengths),
            SelectTransform(
                *("goal_tokens", "observation_tokens", "action_tokens", "action_mask", "goal_kind"),
                *(("hindsight", "goal_tokens"), ("hindsight", "kind")),
                *keep,
            ),
        ),
    )


def make_eval_envs(
    config: RecipeConfig, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> dict[Split, TransformedEnv]:
    """:func:`make_env` for evaluations, by split of goals: an instance for each episode.

    Examples:
        >>> from torchrl_glam.models import load_tokenizer
        >>> config = RecipeConfig(eval_episodes=3)
        >>> envs = make_eval_envs(config, load_tokenizer("tiny"), torch.device("cpu"))
        >>> {split: len(env.reset()) for split, env in envs.items()}
        {'train': 3, 'test': 3}
    """
    return {
        split: make_env(config, tokenizer, device, num_envs=config.eval_episodes, split=split)
        for split in ("train", "test")
    }


def make_probe(
    config: SACGLAMConfig, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> PlanProbe | None:
    """Instruments for policy and critic, or None if the configuration asks for none.

    Examples:
        >>> make_probe(SACGLAMConfig(probe_episodes=0), None, torch.device("cpu"))
    """
    if not config.probe_episodes:
        return None
    state = ("objects", "on", "holding", "grown", "stage")
    keep = ["goal_id", *(("state", key) for key in state)]
    env = make_env(config, tokenizer, device, num_envs=config.probe_episodes, keep=keep)
    oracle = OraclePolicy(env.base_env.goals).to(device)
    return PlanProbe(env, oracle, config.max_steps, gamma=config.gamma)


def check_names_goals(env: EnvBase, hindsight: str, also: Sequence[NestedKey] = ()) -> None:
    """Refuses hindsight where nothing names the goals that were reached.

    Args:
        env: the environment.
        hindsight: the setting that asks for hindsight, for the message.
        also: entries needed beside the named goals' tokens and kinds. Default: none.

    Raises:
        ValueError: if one of them is missing.

    Examples:
        >>> check_names_goals(PlaygroundTextEnv(num_envs=1), "all")  # not tokenised
        Traceback (most recent call last):
            ...
        ValueError: hindsight (all) needs an environment that names the goals reached, and this one
        writes no [('hindsight', 'goal_tokens')]: use another environment, or go without hindsight
    """
    keys = (("hindsight", "goal_tokens"), ("hindsight", "kind"), *also)
    missing = [key for key in keys if key not in env.observation_spec.keys(True)]
    if missing:
        raise ValueError(
            f"hindsight ({hindsight}) needs an environment that names the goals reached, and this "
            f"one writes no {missing}: use another environment, or go without hindsight"
        )


def make_storage(config: SACGLAMConfig, env: EnvBase, folder: Path) -> TensorStorage:
    """The replay buffer's storage that the configuration asks for.

    Args:
        config: the run's configuration.
        env: the environment, whose steps tell how large a transition is.
        folder: the run's; with ``storage: memmap``, transitions lie in its folder ``replay`` until
            the run ends.

    Raises:
        ValueError: if ``capacity`` transitions have no room in memory, or on the disk.

    Examples:
        >>> env = PlaygroundTextEnv(num_envs=1, text=False)
        >>> make_storage(SACGLAMConfig(storage="compact", capacity=500), env, Path("runs"))
        CompactStorage(len=0, max_size=500)
    """
    check_room(config.storage, config.capacity, env, folder)
    if config.storage == "memmap":
        return DiskStorage(config.capacity, folder / "replay")
    kinds = {"ram": LazyTensorStorage, "compact": CompactStorage}
    return kinds[config.storage](config.capacity)


def make_sampler(config: SACGLAMConfig) -> Sampler:
    """The replay buffer's sampler that the configuration asks for.

    Examples:
        >>> make_sampler(SACGLAMConfig(hindsight_ratio=0.3))
        HindsightRatioSampler(ratio=0.3)
        >>> make_sampler(SACGLAMConfig(sampling="uniform", priority_alpha=0.6))
        PrioritizedGroupSampler(all rows, alpha=0.6, beta=0.4)
    """
    sampler = _group_sampler(config)
    if config.priority_alpha:
        return PrioritizedGroupSampler(
            sampler, alpha=config.priority_alpha, beta=config.priority_beta
        )
    return RandomSampler() if sampler is None else sampler


def _group_sampler(config: SACGLAMConfig) -> GroupSampler | None:
    """The sampler for shares of hindsight and goal kinds, or None if batches are to have none.

    The prior over goal kinds is the environment's: it draws goals uniformly, so a kind is as likely
    as it has goals.
    """
    if config.sampling == "uniform" or not config.hindsight:
        return None
    if config.sampling == "ratio":
        return HindsightRatioSampler(config.hindsight_ratio)
    goals = GoalSpace("train", config.sequential)
    prior = goals.kind_ids.long().bincount(minlength=len(GoalSpace.kinds)).tolist()
    return GoalKindSampler(prior, config.hindsight_ratio if "ratio" in config.sampling else None)
