"""Imitation of the shortest plan: tells in a minute what language models understand.

It is free of the noise of reinforcement learning, and no way to train an agent.
"""

import torch
from tensordict.nn import TensorDictModuleBase
from torch.optim.lr_scheduler import OneCycleLR
from torchrl.envs import EnvBase
from tqdm import tqdm

from torchrl_glam.models import CandidateTrunk


def imitate(
    trunk: CandidateTrunk,
    env: EnvBase,
    oracle: TensorDictModuleBase,
    num_steps: int,
    *,
    batch_size: int = 128,
    lr: float = 1e-3,
) -> float:
    """Trains a trunk to choose the actions of an oracle, on fresh steps, each seen once.

    Adam with one cycle of the learning rate and gradients clipped to norm 1.

    Args:
        trunk: is trained in place: hand it a copy of the model.
        env: writes what trunk and oracle read, ``[B]``.
        oracle: writes the action to choose.
        num_steps: steps to imitate, rounded down to whole batches; ValueError for less than one.
        batch_size: steps in a batch. Default: 128.
        lr: peak learning rate. Default: 1e-3.

    Returns:
        Cross-entropy of the last batch, in nats.

    Examples:
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
        >>> from torchrl_glam.text import TokenizeText
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> model, tokenizer = load_language_model("tiny")
        >>> env = TransformedEnv(PlaygroundTextEnv(num_envs=4), TokenizeText(tokenizer))
        >>> oracle = OraclePolicy(env.base_env.goals)
        >>> 0 < imitate(make_trunk(model, tokenizer), env, oracle, 16, batch_size=8) < 3
        True
    """
    num_batches = num_steps // batch_size
    if num_batches < 1:
        raise ValueError(
            f"num_steps ({num_steps}) must be at least batch_size ({batch_size}): one whole batch"
        )
    length = -(-num_steps // env.batch_size[0])
    steps = env.rollout(length, oracle, break_when_any_done=False).flatten()
    order = torch.randperm(len(steps))[: num_batches * batch_size].split(batch_size)
    optimizer = torch.optim.Adam(trunk.parameters(), lr=lr, fused=True)
    cycle = max(num_batches, 3)  # of which it needs two to rise
    schedule = OneCycleLR(optimizer, lr, cycle, pct_start=max(0.1, 2 / cycle))
    for rows in tqdm(order, desc="imitate the shortest plan"):
        batch = steps[rows]
        scores, mask = trunk(batch)[trunk.out_keys[0]], batch[trunk.in_keys[-1]]
        scores = scores.masked_fill(~mask, -1e9)
        loss = torch.nn.functional.cross_entropy(scores, batch[oracle.out_keys[0]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trunk.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return loss.item()
