"""Whether an environment keeps the text contract, said in its terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn
from torchrl.envs import EnvBase, TransformedEnv, check_env_specs
from torchrl.envs.utils import step_mdp

from torchrl_glam.envs.action_mask import CandidateMask
from torchrl_glam.text import EnvDescription, PromptTemplate, decode_text, describe_env

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_GOAL, _KIND, _ID = ("hindsight", "goal"), ("hindsight", "kind"), ("hindsight", "goal_id")
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
# Of every key: what follows the batch in its shape, and its types.
_ENTRIES: dict[NestedKey, tuple[tuple[str, ...], tuple[torch.dtype, ...]]] = {
    "goal": (("bytes",), (torch.uint8,)),
    "observation": (("bytes",), (torch.uint8,)),
    "actions": (("A", "bytes"), (torch.uint8,)),
    "action_mask": (("A",), (torch.bool,)),
    "goal_kind": ((), _INTEGERS),
    _GOAL: (("H", "bytes"), (torch.uint8,)),
    _KIND: (("H",), _INTEGERS),
    _ID: (("H",), _INTEGERS),
}


def check_text_env(
    env: EnvBase,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    model: nn.Module | None = None,
    template: PromptTemplate | None = None,
    steps: int = 100,
    seed: int = 0,
) -> None:
    """Plays an environment at random and checks that it keeps the text contract.

    Beside what TorchRL's :func:`~torchrl.envs.check_env_specs` checks, which runs at the end.

    Args:
        env: the environment, whose seed is set; one in a batch or many.
        tokenizer, model: a language model, to check that it can read every prompt with every
            action. Default: None, not checked.
        template: the prompt. Default: :class:`~torchrl_glam.text.PromptTemplate`.
        steps: steps to play; resets included, more than one episode should fit. Default: 100.
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
    if (tokenizer is None) != (model is None):
        raise ValueError(
            "tokenizer and model: give both, to check that the model can read, or none"
        )
    if len(env.batch_size) > 2:
        raise ValueError(
            f"the batch size {list(env.batch_size)} has {len(env.batch_size)} dimensions: the "
            "contract knows [] and [B], and [N, B] by SerialEnv or ParallelEnv"
        )
    if "action_mask" not in env.observation_spec.keys(True):
        raise _missing("action_mask", "observation_spec")
    description = describe_env(env)
    reader = None if model is None else _Reader(tokenizer, model, template)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        env.set_seed(seed)
        for state, where, counts in _play(env, steps):
            _check_types(state, env.batch_size, where)
            rows = _Rows(state, env.batch_size, where, counts)
            _check_content(rows, description)
            if where == "step":
                _check_success(rows, description)
            if reader is not None:
                reader.check(rows)
        masked = TransformedEnv(env, CandidateMask(), auto_unwrap=False)
        check_env_specs(masked)  # which plays what is admissible


def _play(env: EnvBase, steps: int) -> Iterator[tuple[TensorDictBase, str, Tensor]]:
    """States, whether a reset or a step led there, and the rows that it did lead there.

    The next action is drawn after a state was looked at.
    """
    everything = torch.ones(env.batch_size, dtype=torch.bool)
    state = env.reset()
    yield state, "reset", everything
    for _ in range(steps):
        mask = state["action_mask"]
        drawn = torch.multinomial(mask.reshape(-1, mask.shape[-1]).float(), 1)
        following = env.step(state.set("action", drawn.view(mask.shape[:-1])))["next"]
        yield following, "step", everything
        done = following["done"]
        state = step_mdp(following.new_empty(following.batch_size).set("next", following))
        if done.any():
            state = env.reset(state.set("_reset", done))
            yield state, "reset", done.view(env.batch_size)


class _Rows:
    """Entries of the rows of a state that count, in one dimension, and the names of these rows."""

    def __init__(
        self, state: TensorDictBase, batch: torch.Size, where: str, counts: Tensor
    ) -> None:
        self.state, self.batch, self.where = state, batch, where
        self._places = counts.flatten().nonzero().flatten()

    def get(self, key: NestedKey) -> Tensor | None:
        value = self.state.get(key, None)
        if value is None:
            return None
        return value.reshape(-1, *value.shape[len(self.batch) :])[self._places]

    def name(self, key: NestedKey, row: int, *more: int) -> str:
        place = torch.unravel_index(self._places[row], self.batch) if self.batch else ()
        index = ", ".join(str(int(i)) for i in (*place, *more))
        return f"{_named(key)}{f'[{index}]' if index else ''} of the {self.where}"


def _check_types(state: TensorDictBase, batch: torch.Size, where: str) -> None:
    """Keys, types and shapes."""
    named = [key for key in (_GOAL, _ID) if state.get(key, None) is not None]
    wanted = [*list(_ENTRIES)[:5], *named, *([_KIND] if named else [])]
    for key in wanted:
        value = state.get(key, None)
        if value is None:
            raise _missing(key, where)
        ends, types = _ENTRIES[key]
        shape = f"[{', '.join(('*B', *ends))}], B being {list(batch)}"
        names = " or ".join(str(kind).removeprefix("torch.") for kind in types)
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{_named(key)} of the {where} is {type(state[key]).__name__}: it must be a "
                f"{names} tensor {shape}; TextLayout.pack and encode_text write strings so"
            )
        if value.dtype not in types:
            raise ValueError(
                f"{_named(key)} of the {where} is {value.dtype}: it must be {names}; write it so, "
                f"and say it in the specs (.to(torch.{names.split()[0]}))"
            )
        if value.shape[: len(batch)] != batch or value.ndim != len(batch) + len(ends):
            raise ValueError(
                f"{_named(key)} of the {where} has the shape {list(value.shape)}: it must be "
                f"{shape}"
            )
    actions, mask = state["actions"].shape[len(batch)], state["action_mask"].shape[-1]
    if actions != mask:
        raise ValueError(
            f"actions of the {where} has {actions} candidates and action_mask {mask}: pad both to "
            "the same number"
        )
    if named and state[named[0]].shape[len(batch)] != state[_KIND].shape[-1]:
        raise ValueError(
            f"{_named(named[0])} of the {where} has {state[named[0]].shape[len(batch)]} slots and "
            f"{_named(_KIND)} {state[_KIND].shape[-1]}: a kind for each, -1 in empty ones"
        )
    if _GOAL in named and state[_GOAL].shape[-1] != state["goal"].shape[-1]:
        raise ValueError(
            f"{_named(_GOAL)} of the {where} is {state[_GOAL].shape[-1]} bytes wide and goal "
            f"{state['goal'].shape[-1]}: one replaces the other, so pad both to the same width"
        )


def _check_content(rows: _Rows, description: EnvDescription) -> None:
    """What the rows hold."""
    for key in ("goal", "observation", "actions", _GOAL):
        text = rows.get(key)
        if text is not None:
            _check_text(rows, key, text)
    actions, mask = rows.get("actions"), rows.get("action_mask")
    for row, (texts, admissible) in enumerate(
        zip(decode_text(actions), mask.tolist(), strict=True)
    ):
        places = [place for place, allowed in enumerate(admissible) if allowed]
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
        raise ValueError(f"{place} goes on after a zero byte: zeros are padding, at the end only")
    for index in text[..., 0].nonzero().tolist():
        try:
            decode_text(text[tuple(index)])
        except ValueError as error:
            raise ValueError(f"{rows.name(key, *index)}: {error}") from None


def _check_kinds(rows: _Rows, description: EnvDescription) -> None:
    kinds = description.goal_kinds
    known = f"and there are {len(kinds)} goal_kinds {kinds}: name more of them, or write others"
    pursued, named = rows.get("goal_kind"), rows.get(_KIND)
    for row in ((pursued < 0) | (pursued >= len(kinds))).nonzero().flatten().tolist():
        raise ValueError(f"{rows.name('goal_kind', row)} is {int(pursued[row])}, {known}")
    if named is None:
        return
    for row, slot in ((named < -1) | (named >= len(kinds))).nonzero().tolist():
        raise ValueError(f"{rows.name(_KIND, row, slot)} is {int(named[row, slot])}, {known}")
    key = _GOAL if rows.get(_GOAL) is not None else _ID
    goals = rows.get(key)
    filled = goals[..., 0] != 0 if key == _GOAL else goals >= 0
    for row, slot in (filled != (named >= 0)).nonzero().tolist():
        says = "names a goal" if filled[row, slot] else "is empty"
        raise ValueError(
            f"{rows.name(key, row, slot)} {says} and its kind is {int(named[row, slot])}: the kind "
            "must be -1 in empty slots, and in no other"
        )
    if key == _ID:
        texts = description.goal_texts
        if texts is None:
            raise ValueError(
                f"{_named(_ID)} counts in texts that the environment does not tell: give it an "
                f"attribute goal_texts, or write {_named(_GOAL)}"
            )
        for row, slot in (goals >= len(texts)).nonzero().tolist():
            raise ValueError(
                f"{rows.name(_ID, row, slot)} is {int(goals[row, slot])}, and goal_texts has "
                f"{len(texts)} entries"
            )


def _check_success(rows: _Rows, description: EnvDescription) -> None:
    key = description.success_key
    reached, done = rows.get(key), rows.get("done")
    if reached is None:
        raise _missing(key, "step", "; success_key names the entry that says what success is")
    if reached.numel() != done.numel():
        raise ValueError(
            f"{_named(key)} of the step has the shape {list(rows.state[key].shape)}: it must be "
            f"that of done, {list(rows.state['done'].shape)}"
        )
    for row in ((reached.reshape(done.shape) > 0) & ~done).nonzero()[:, 0].tolist():
        raise ValueError(
            f"{rows.name(key, row)} is {reached.reshape(-1)[row].item()} where no episode ends: it "
            "must be positive on the step that reaches the goal, which ends the episode, and on no "
            "other; where rewards say more, write a bool entry that does and name it in the "
            "attribute success_key"
        )


class _Reader:
    """Whether a language model has positions for what it would be given."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, model: nn.Module, template: PromptTemplate | None
    ) -> None:
        # Here, because models imports this package.
        from torchrl_glam.models.trunks.reader import positions, text_config

        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.limit = positions(text_config(base))
        self.apart = getattr(base.config, "is_encoder_decoder", False)
        self.tokenizer = tokenizer
        self.template = PromptTemplate() if template is None else template

    def check(self, rows: _Rows) -> None:
        if self.limit is None:
            return
        texts = (decode_text(rows.get(key)) for key in ("goal", "observation", "actions"))
        for row, (goal, observation, actions) in enumerate(zip(*texts, strict=True)):
            prompt = self.template.fill(goal, observation)
            texts = [prompt, *(self.template.action_lead + action for action in actions)]
            numbers = [len(ids) for ids in self.tokenizer(texts).input_ids]
            counts = numbers[0], max(numbers[1:])
            if (max(counts) if self.apart else sum(counts)) > self.limit.tokens:
                raise ValueError(
                    f"{rows.name('observation', row)} makes a prompt of {counts[0]} tokens, with "
                    f"an action of {counts[1]}, and the model {self.limit.why}: cut the text "
                    "(keep=...), or choose a model with a longer context"
                )


def _named(key: NestedKey) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _missing(key: NestedKey, where: str, more: str = "") -> ValueError:
    ends, types = _ENTRIES.get(key, ((), ()))
    what = " or ".join(str(kind).removeprefix("torch.") for kind in types)
    shape = f", {what} [{', '.join(('*B', *ends))}]" if types else ""
    return ValueError(
        f"{_named(key)} is missing from the {where}: the text contract wants it{shape}{more}"
    )
