"""Whether an environment keeps the text contract, said in its terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv, check_env_specs
from torchrl.envs.utils import step_mdp

from torchrl_glam.envs.action_mask import CandidateMask
from torchrl_glam.envs.check_entries import Rows, check_content, check_types, missing, name_of
from torchrl_glam.text import EnvDescription, describe_env

_SLACK = 1e-4  # of rewards that leave their scale by rounding


def check_text_env(
    env: EnvBase,
    *,
    reward_scale: tuple[float, float] = (0.0, 1.0),
    steps: int = 100,
    seed: int = 0,
) -> None:
    """Plays an environment at random and checks that it keeps the text contract.

    It checks what entries hold, and that rewards fit hindsight; that the same seed and actions give
    the same episodes; that instances which TorchRL's partial steps leave out stand still; and the
    specs, by :func:`~torchrl.envs.check_env_specs`.

    Args:
        env: the environment, whose seed is set; one instance or a batch.
        reward_scale: smallest and largest reward, as in
            :class:`~torchrl_glam.replay.HindsightTransform`; only checked where hindsight is
            written. Default: (0.0, 1.0).
        steps: steps to play; more than one episode should fit. Default: 100.
        seed: of environment and actions. Default: 0.

    Raises:
        ValueError: on the first fault, naming the key, the row, what it holds, and the remedy.
        AssertionError: as TorchRL's check raises it.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=2)
        >>> check_text_env(env)
        >>> env.success_key = "won"
        >>> check_text_env(env)
        Traceback (most recent call last):
            ...
        ValueError: won is missing from the step: ...
    """
    if len(env.batch_size) > 2:
        raise ValueError(
            f"the batch size {list(env.batch_size)} has {len(env.batch_size)} dimensions: the "
            "contract knows [] and [B], and [N, B] by SerialEnv or ParallelEnv"
        )
    if "action_mask" not in env.observation_spec.keys(True):
        raise missing("action_mask", "observation_spec")
    description = describe_env(env)
    with torch.random.fork_rng():
        played, actions = [], []
        for rows in _play(env, seed, steps, actions):
            check_types(rows)
            check_content(rows, description)
            if rows.where == "step":
                _check_rewards(rows, reward_scale)
                _check_success(rows, description)
            played.append(rows)
        _check_seed(env, seed, played, actions)
        _check_partial_steps(env, seed, min(steps, 30))
        masked = TransformedEnv(env, CandidateMask(), auto_unwrap=False)
        check_env_specs(masked)  # which plays what is admissible


def _play(env: EnvBase, seed: int, steps: int, actions: list[Tensor]) -> Iterator[Rows]:
    """Plays the actions, or ``steps`` new ones, which it lists; yields the rows that count."""
    torch.manual_seed(seed)
    env.set_seed(seed)
    given = iter(actions[:])
    everything = torch.ones(env.batch_size, dtype=torch.bool)
    state = env.reset()
    yield Rows(state.clone(), env.batch_size, "reset", everything)
    for _ in range(steps):
        action = next(given, None)
        if action is None:
            action = _draw(state["action_mask"])
            actions.append(action)
        following = env.step(state.set("action", action.clone()))["next"]
        yield Rows(following.clone(), env.batch_size, "step", everything)
        done = following["done"]
        state = _after(following)
        if done.any():
            state = env.reset(state.set("_reset", done))
            yield Rows(state.clone(), env.batch_size, "reset", done.view(env.batch_size))


def _draw(mask: Tensor) -> Tensor:
    """Admissible actions, uniformly."""
    return torch.multinomial(mask.reshape(-1, mask.shape[-1]).float(), 1).view(mask.shape[:-1])


def _after(following: TensorDictBase) -> TensorDictBase:
    return step_mdp(following.new_empty(following.batch_size).set("next", following))


def _check_seed(env: EnvBase, seed: int, played: Sequence[Rows], actions: list[Tensor]) -> None:
    """Plays the same actions from the same seed."""
    again = _play(env, seed, len(actions), actions)
    for number, (rows, before) in enumerate(zip(again, played, strict=False)):
        key = rows.first_difference(before)
        if key is not None or rows.where != before.where:
            raise ValueError(
                f"{name_of(key or 'done')} of state {number} differs when the same actions are "
                f"played again from the seed {seed}: draw all that is random from the seed that "
                "set_seed is given (in a game: reset(seed=...))"
            )


def _check_partial_steps(env: EnvBase, seed: int, steps: int) -> None:
    """Leaves out the first instance, or the first process of a batched environment."""
    if not env.batch_size or env.batch_size[0] < 2:
        return  # TorchRL itself leaves out all or none
    env.set_seed(seed)
    moves = torch.ones(env.batch_size, dtype=torch.bool)
    moves[0] = False
    state = env.reset()
    for _ in range(steps):
        before = Rows(state.clone(), env.batch_size, "state", ~moves)
        state.set("action", _draw(state["action_mask"]))
        following = env.step(state.set("_step", moves.view(state["done"].shape)))["next"]
        rows = Rows(following, env.batch_size, "step", ~moves)
        key = rows.first_difference(before, ("observation", "actions", "action_mask", "done"))
        if key is not None:
            raise ValueError(
                f'{rows.name(key, 0)} changes although "_step" is False there: _step must leave '
                "such instances as they are (TorchRL's partial steps); evaluation leaves out "
                "finished episodes"
            )
        state = env.reset() if following["done"].any() else _after(following)


def _check_rewards(rows: Rows, scale: tuple[float, float]) -> None:
    reward = rows.get("reward")
    if reward is None:
        raise missing("reward", "step")
    reward = reward.reshape(-1)
    for row in (~reward.isfinite()).nonzero().flatten().tolist():
        raise ValueError(
            f"{rows.name('reward', row)} is {reward[row].item()}: rewards must be finite numbers"
        )
    if rows.state.get("hindsight", None) is None:
        return
    low, high = scale
    slack = _SLACK * (high - low)
    for row in ((reward < low - slack) | (reward > high + slack)).nonzero().flatten().tolist():
        raise ValueError(
            f"{rows.name('reward', row)} is {reward[row].item()}, and hindsight gives relabelled "
            f"steps {low:g}, or {high:g} where they reach their goal: rewards must be from "
            f"{low:g} to {high:g}. Give others (reward=... of TextEnvWrapper), or give "
            "HindsightTransform and this check another reward_scale"
        )


def _check_success(rows: Rows, description: EnvDescription) -> None:
    key = description.success_key
    reached, done = rows.get(key), rows.get("done")
    if reached is None:
        raise missing(key, "step", "; success_key names the entry that says what success is")
    if reached.numel() != done.numel():
        raise ValueError(
            f"{name_of(key)} of the step has the shape {list(rows.state[key].shape)}: it must be "
            f"that of done, {list(rows.state['done'].shape)}"
        )
    for row in ((reached.reshape(done.shape) > 0) & ~done).nonzero()[:, 0].tolist():
        raise ValueError(
            f"{rows.name(key, row)} is {reached.reshape(-1)[row].item()} where no episode ends: it "
            "must be positive on the step that reaches the goal, and on no other; where rewards "
            "say more, write a bool entry that does and name it in the attribute success_key"
        )
