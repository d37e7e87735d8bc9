"""The collector of a worker process, made as a configuration asks for it, and its weights."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torchrl.collectors import Collector

from torchrl_glam.models import (
    CandidateActor,
    OnDevice,
    ScoresOnly,
    make_trunk,
    with_random_actions,
)
from torchrl_glam.objectives import trainable_leaves
from torchrl_glam.runs.config import SACGLAMRayConfig
from torchrl_glam.runs.device import bound_kernel_caches, choose_autocast
from torchrl_glam.runs.environments import make_env
from torchrl_glam.runs.language_model import load_agent_model, scoring
from torchrl_glam.runs.seeds import derive_seed, seed_everything


def make_collector(config: SACGLAMRayConfig, number: int) -> Collector:
    """A collector with a language model and environments of its own, without an end.

    Args:
        config: the run's configuration.
        number: of the collector over the run; what it draws depends on it.
    """
    device = torch.device("cuda" if config.collector_gpus else "cpu")
    autocast = choose_autocast(config.autocast, device)
    bound_kernel_caches()
    seed = derive_seed(config.seed, number)
    seed_everything(seed)
    model, tokenizer = load_agent_model(config, device, autocast)
    trunk = make_trunk(model, tokenizer, **scoring(config, tokenizer, device, autocast))
    env = make_env(config, tokenizer, seed=seed)
    acting = (ScoresOnly(trunk), CandidateActor())
    policy = OnDevice(TensorDictSequential(*acting, selected_out_keys=["action"]))
    return Collector(
        env,
        with_random_actions(policy, env.action_spec.n, config.exploration),
        frames_per_batch=config.update_every,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )


def trained_weights(policy: TensorDictModuleBase) -> TensorDict:
    """The weights of a policy that are trained, nested by module, in this machine's memory.

    They are all that ``Collector.update_policy_weights_`` needs: with adapters a few MB.
    """
    return trainable_leaves(policy).data.cpu()
