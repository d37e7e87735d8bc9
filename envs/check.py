"""Whether an environment keeps the text contract, said in its terms."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv, check_env_specs
from torchrl.envs.utils import step_mdp

from torchrl_glam.envs.action_mask import CandidateMask
from torchrl_glam.text import EnvDescription, decode_text, describe_env, draw_admissible

_SLACK = 1e-4  # of rewards that leave their scale by rounding
_GOAL, _KIND, _ID = ("hindsight", "goal"), ("hindsight", "kind"), ("hindsight", "goal_id")
_INTEGERS = "int8 or int16 or int32 or int64"
# Of every key: its types, and its shape.
_ENTRIES: dict[NestedKey, tuple[str, str]] = {
    "goal": ("uint8", "[*B, bytes]"),
    "observation": ("uint8", "[*B, bytes]"),
    "actions": ("uint8", "[*B, A, bytes]"),
    "action_mask": ("bool", "[*B, A]"),
    "goal_kind": (_INTEGERS, "[*B]"),
    _GOAL: ("uint8", "[*B, H, bytes]"),
    _KIND: (_INTEGERS, "[*B, H]"),
    _ID: (_INTEGERS, "[*B, H]"),
}
_ALWAYS = [key for key in _ENTRIES if isinstance(key, str)]


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
        env: the environment, whose seed is set, without a goal sampler; one instance or a batch.
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
    if not isinstance(env, EnvBase):
        raise ValueError(
            f"env is {type(env).__name__}: it must be a torchrl.envs.EnvBase; TextEnvWrapper makes "
            "one of a game"
        )
    if len(env.batch_size) > 2:
        raise ValueError(
            f"the batch size {list(env.batch_size)} has {len(env.batch_size)} dimensions: the "
            "contract knows [] and [B], and [N, B] by SerialEnv or ParallelEnv"
        )
    if "action_mask" not in env.observation_spec.keys(True):
        raise _missing("action_mask", "observation_spec")
    description = describe_env(env)
    with torch.random.fork_rng():
        played, actions = [], []
        for rows in _play(env, seed, steps, actions):
            _check_types(rows)
            _check_content(rows, description)
            if rows.where == "step":
                _check_rewards(rows, reward_scale)
                _check_success(rows, description)
            played.append(rows)
        _check_seed(env, seed, played, actions)
        _check_partial_steps(env, seed, min(steps, 30))
        masked = TransformedEnv(env, CandidateMask(), auto_unwrap=False)
        check_env_specs(masked)  # which plays what is admissible


class _Rows:
    """The rows of a reset's or step's state that count, ``bool [*B]``, in one dimension."""

    def __init__(
        self, state: TensorDictBase, batch: torch.Size, where: str, counts: Tensor
    ) -> None:
        self.state, self.batch, self.where = state, batch, where
        self._places = counts.flatten().nonzero().flatten()

    def get(self, key: NestedKey) -> Tensor | None:
        """Values of an entry, ``[rows, ...]``; None if it is missing."""
        value = self.state.get(key, None)
        if value is not None:
            value = value.reshape(-1, *value.shape[len(self.batch) :])[self._places]
        return value

    def first_difference(
        self, other: "_Rows", keys: Iterable[NestedKey] | None = None
    ) -> NestedKey | None:
        """The first of the keys, by default all, whose values differ; None if none does."""
        for key in self.state.keys(True, True) if keys is None else keys:
            mine, theirs = self.get(key), other.get(key)
            if isinstance(mine, Tensor) and not (
                isinstance(theirs, Tensor) and torch.equal(mine, theirs)
            ):
                return key
        return None

    def name(self, key: NestedKey, row: int, *more: int) -> str:
        """An entry of a row, as errors name it."""
        place = torch.unravel_index(self._places[row], self.batch) if self.batch else ()
        index = ", ".join(str(int(i)) for i in (*place, *more))
        return f"{_name_of(key)}{f'[{index}]' if index else ''} of the {self.where}"


def _play(env: EnvBase, seed: int, steps: int, actions: list[Tensor]) -> Iterator[_Rows]:
    """Plays the actions, or ``steps`` new ones, which it lists; yields the rows that count."""
    torch.manual_seed(seed)
    env.set_seed(seed)
    given = iter(actions[:])
    everything = torch.ones(env.batch_size, dtype=torch.bool)
    state = env.reset()
    yield _Rows(state.clone(), env.batch_size, "reset", everything)
    for _ in range(steps):
        action = next(given, None)
        if action is None:
            action = draw_admissible(state["action_mask"])
            actions.append(action)
        step = env.step(state.set("action", action.clone()))
        yield _Rows(step["next"].clone(), env.batch_size, "step", everything)
        state = step_mdp(step.select("next"))
        if (done := step["next", "done"]).any():
            state = env.reset(state.set("_reset", done))
            yield _Rows(state.clone(), env.batch_size, "reset", done.view(env.batch_size))


def _check_seed(env: EnvBase, seed: int, played: Sequence[_Rows], actions: list[Tensor]) -> None:
    """Plays the same actions from the same seed."""
    again = _play(env, seed, len(actions), actions)
    for number, (rows, before) in enumerate(zip(again, played, strict=False)):
        key = rows.first_difference(before)
        if key is not None or rows.where != before.where:
            raise ValueError(
                f"{_name_of(key or 'done')} of state {number} differs when the same actions are "
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
        before = _Rows(state.clone(), env.batch_size, "state", ~moves)
        state.set("action", draw_admissible(state["action_mask"]))
        step = env.step(state.set("_step", moves.view(state["done"].shape)))
        rows = _Rows(step["next"], env.batch_size, "step", ~moves)
        key = rows.first_difference(before, ("observation", "actions", "action_mask", "done"))
        if key is not None:
            raise ValueError(
                f'{rows.name(key, 0)} changes although "_step" is False there: _step must leave '
                "such instances as they are (TorchRL's partial steps); evaluation leaves out "
                "finished episodes"
            )
        state = env.reset() if step["next", "done"].any() else step_mdp(step.select("next"))


def _check_rewards(rows: _Rows, scale: tuple[float, float]) -> None:
    reward = rows.get("reward")
    if reward is None:
        raise _missing("reward", "step")
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


def _check_success(rows: _Rows, description: EnvDescription) -> None:
    key = description.success_key
    reached, done = rows.get(key), rows.get("done")
    if reached is None:
        raise _missing(key, "step", "; success_key names the entry that says what success is")
    if reached.numel() != done.numel():
        raise ValueError(
            f"{_name_of(key)} of the step has the shape {list(rows.state[key].shape)}: it must be "
            f"that of done, {list(rows.state['done'].shape)}"
        )
    for row in ((reached.reshape(done.shape) > 0) & ~done).nonzero()[:, 0].tolist():
        raise ValueError(
            f"{rows.name(key, row)} is {reached.reshape(-1)[row].item()} where no episode ends: it "
            "must be positive on the step that reaches the goal, and on no other; where rewards "
            "say more, write a bool entry that does and name it in the attribute success_key"
        )


def _check_types(rows: _Rows) -> None:
    """Checks keys, types and shapes."""
    state, batch, where = rows.state, rows.batch, rows.where
    named = [key for key in (_GOAL, _ID) if state.get(key, None) is not None]
    for key in _ALWAYS + named + [_KIND] * bool(named):
        value, name = state.get(key, None), f"{_name_of(key)} of the {where}"
        if value is None:
            raise _missing(key, where)
        types, shape = _ENTRIES[key]
        ndim = len(batch) + shape.count(",")
        shape += f", B being {list(batch)}"
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{name} is {type(state[key]).__name__}: it must be a {types} tensor {shape}; "
                "TextLayout.pack and encode_text write strings so"
            )
        if str(value.dtype).removeprefix("torch.") not in types.split():
            raise ValueError(
                f"{name} is {value.dtype}: it must be {types}; write it so, and say it in the "
                f"specs (.to(torch.{types.split()[0]}))"
            )
        if value.shape[: len(batch)] != batch or value.ndim != ndim:
            raise ValueError(f"{name} has the shape {list(value.shape)}: it must be {shape}")
    alike = [("actions", "action_mask", len(batch), "candidates", "pad both")]
    alike += [(key, _KIND, len(batch), "slots", "a kind for each, -1 in empty") for key in named]
    if _GOAL in named:
        alike.append((_GOAL, "goal", -1, "bytes", "one replaces the other, so pad both alike"))
    for key, other, dim, what, remedy in alike:
        size, wanted = state[key].shape[dim], state[other].shape[dim]
        if size != wanted:
            raise ValueError(
                f"{_name_of(key)} of the {where} has {size} {what} and {_name_of(other)} {wanted}: "
                f"{remedy}"
            )


def _check_content(rows: _Rows, description: EnvDescription) -> None:
    """Checks texts, admissible actions and kinds of goals."""
    for key in ("goal", "observation", "actions", _GOAL):
        text = rows.get(key)
        if text is not None:
            _check_text(rows, key, text)
    actions, mask = rows.get("actions"), rows.get("action_mask")
    for row, texts in enumerate(decode_text(actions)):
        places = mask[row].nonzero().flatten().tolist()
        if not places:
            raise ValueError(
                f"{rows.name('action_mask', row)} has no admissible action: each state needs one, "
                "the last of an episode too (those of the state before will do)"
            )
        first: dict[str, int] = {}
        for place in places:
            if not texts[place]:
                raise ValueError(
                    f"{rows.name('actions', row, place)} is empty and admissible: mask it out"
                )
            other = first.setdefault(texts[place], place)
            if other != place:
                raise ValueError(
                    f"{rows.name('actions', row, place)} is {texts[place]!r}, and so is "
                    f"{rows.name('actions', row, other)}: admissible actions must differ; merge "
                    "them, or mask one out"
                )
    _check_kinds(rows, description)


def _check_text(rows: _Rows, key: NestedKey, text: Tensor) -> None:
    after_end = ((text[..., 1:] != 0) & (text[..., :-1] == 0)).any(-1).nonzero()
    if len(after_end):
        place = rows.name(key, *after_end[0].tolist())
        raise ValueError(f"{place} continues after a zero byte: zeros are padding, at the end only")
    for index in text[..., 0].nonzero().tolist():
        try:
            decode_text(text[tuple(index)])
        except ValueError as error:
            raise ValueError(f"{rows.name(key, *index)}: {error}") from None


def _check_kinds(rows: _Rows, description: EnvDescription) -> None:
    kinds, texts, named = description.goal_kinds, description.goal_texts, rows.get(_KIND)
    _check_indices(rows, "goal_kind", 0, len(kinds), f"goal_kinds {kinds}")
    if texts is not None and rows.get("goal_id") is not None:
        _check_indices(rows, "goal_id", 0, len(texts), "goal_texts")
    if named is None:
        return
    _check_indices(rows, _KIND, -1, len(kinds), f"goal_kinds {kinds}")
    key = _GOAL if rows.get(_GOAL) is not None else _ID
    goals = rows.get(key)
    filled = goals[..., 0] != 0 if key == _GOAL else goals >= 0
    for row, slot in (filled != (named >= 0)).nonzero().tolist():
        says = "names a goal" if filled[row, slot] else "is empty"
        raise ValueError(
            f"{rows.name(key, row, slot)} {says} and its kind is {int(named[row, slot])}: the kind "
            "must be -1 in empty slots, and in no other"
        )
    if key == _GOAL:
        return
    if texts is None:
        raise ValueError(
            f"{_name_of(_ID)} counts in texts that the environment does not tell: give it an "
            f"attribute goal_texts, or write {_name_of(_GOAL)}"
        )
    _check_indices(rows, _ID, -1, len(texts), "goal_texts")


def _check_indices(rows: _Rows, key: NestedKey, least: int, size: int, table: str) -> None:
    found = rows.get(key)
    for place in ((found < least) | (found >= size)).nonzero().tolist():
        raise ValueError(
            f"{rows.name(key, *place)} is {int(found[tuple(place)])}, and there are {size} "
            f"{table}: name more of them, or write others"
        )


def _name_of(key: NestedKey) -> str:
    """A key as errors name it."""
    return key if isinstance(key, str) else ".".join(key)


def _missing(key: NestedKey, where: str, more: str = "") -> ValueError:
    """The error for an entry that is not there."""
    wanted = f", {' '.join(_ENTRIES[key])}" if key in _ENTRIES else ""
    return ValueError(
        f"{_name_of(key)} is missing from the {where}: the text contract wants it{wanted}{more}"
    )
