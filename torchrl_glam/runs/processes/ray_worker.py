"""The collector of a worker process, made as a configuration asks for it."""

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector

from torchrl_glam.models import (
    CandidateActor,
    OnDevice,
    ScoresOnly,
    make_trunk,
    with_random_actions,
)
from torchrl_glam.runs.config import SACGLAMRayConfig
from torchrl_glam.runs.environments import make_env
from torchrl_glam.runs.seeds import derive_seed
from torchrl_glam.runs.setting import Setting


def make_collector(config: SACGLAMRayConfig, number: int) -> Collector:
    """A collector with a language model and environments of its own, without an end.

    What it draws depends on its number over the run.
    """
    seed, setting = derive_seed(config.seed, number), Setting(config)
    setting.settle(torch.device("cuda" if config.collector_gpus else "cpu"), seed)
    model, tokenizer = setting.load_model()
    trunk = make_trunk(model, tokenizer, **setting.scoring(tokenizer))
    env = make_env(config, tokenizer, seed=seed)
    acting = (ScoresOnly(trunk), CandidateActor())
    policy = OnDevice(TensorDictSequential(*acting, selected_out_keys=["action"]))
    return setting.collect(env, with_random_actions(policy, env.action_spec.n, config.exploration))
