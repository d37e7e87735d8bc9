"""From text to tokens at the environment's boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torch.nn.functional import embedding
from torchrl.data import Bounded, Composite
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import EnvBase, Transform

from torchrl_glam.text.encoding import End, decode_text
from torchrl_glam.text.memory import StepMemory
from torchrl_glam.text.prompt import EXAMPLE_ACTIONS, check_composition
from torchrl_glam.text.template import PromptTemplate
from torchrl_glam.text.token_cache import TokenCache

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenizeText(Transform):
    """Tokenises goal, observation, candidate actions and hindsight goals.

    It works on any environment of the text contract. The text stays in the tensordict; an
    ``ExcludeTransform`` after this one drops it. A cache holds the tokens of texts seen before.

    Hindsight goals are text, or ids into a list of texts, which are read if there is no text. An
    empty goal or observation is part of the prompt, with the white space in front of it; an empty
    action or hindsight goal is an empty slot. The first state, and the first with an empty goal or
    observation, is checked by :func:`~torchrl_glam.text.check_composition`.

    Notation: B batch shape of the environment, A candidate actions, H hindsight goals.

    Args:
        tokenizer: tokenizer of the language model, with a padding token.
        goal_length: tokens kept for a goal (Tg). Default 24.
        observation_length: tokens kept for an observation (To). Default 160.
        action_length: tokens kept for a candidate action (Ta). Default 8.
        keep: which end of a longer text is kept, in whole words: ``"head"`` or ``"tail"``. The
            first such text of each kind causes a warning, and :attr:`num_cut` counts them.
            Default: None, a longer text is an error.
        memory: the most tokens of earlier steps of the episode in front of the observation, the
            newest ones, each a whole observation and the action played after it:
            ``"You are on floor 0\\nAction: up\\nYou are on floor 1"``. Default 0: none.
        template: the prompt, which says what white space stands in front of each piece. Default:
            :class:`~torchrl_glam.text.PromptTemplate`.
        goal_texts: the texts that ids of hindsight goals index. Default: the environment's
            attribute ``goal_texts``.
        goal_key, observation_key, actions_key, hindsight_goal_key: text to read. Defaults:
            ``"goal"``, ``"observation"``, ``"actions"``, ``("hindsight", "goal")``. The last may
            be missing from the environment.
        hindsight_goal_id_key: ids of hindsight goals to read where there is no text, integers
            ``[*B, H]``, -1 for none. Default: ``("hindsight", "goal_id")``. May be missing too.
        action_key: index of the action, int64 ``[*B]``, for a memory. Default: ``"action"``.
        goal_tokens_key, observation_tokens_key, action_tokens_key, hindsight_tokens_key: tokens to
            write, right-padded: ``[*B, Tg]``, ``[*B, To]`` (with ``memory`` ``[*B, P + To]``, P
            places for earlier steps first), ``[*B, A, Ta]`` and ``[*B, H, Tg]``, int16 if the
            vocabulary fits, else int32. Defaults: ``"goal_tokens"``,
            ``"observation_tokens"``, ``"action_tokens"``, ``("hindsight", "goal_tokens")``.

    Raises:
        ValueError: if the tokenizer has no padding token, ``memory`` is no number of tokens, or a
            length is too small for what stands in front of a slot; when a text is read, if it has
            more tokens than the length kept for it and there is no ``keep``, if it is not UTF-8 or
            spells the padding token, or if a prompt's pieces have not the tokens of the whole; on
            the first reset, if ``memory`` is too small for a step; when ids are read, if nothing
            gives their texts, or if the environments of a batch differ in them.
        TypeError: when a text is read, if it is no tensor of bytes.

    Examples:
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> tokenizer = load_tokenizer("tiny")
        >>> env = TransformedEnv(PlaygroundTextEnv(num_envs=2, seed=0), TokenizeText(tokenizer))
        >>> env.reset()["action_tokens"].shape
        torch.Size([2, 8, 8])
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        goal_length: int = 24,
        observation_length: int = 160,
        action_length: int = 8,
        keep: End | None = None,
        memory: int = 0,
        template: PromptTemplate | None = None,
        goal_texts: Sequence[str] | None = None,
        goal_key: NestedKey = "goal",
        observation_key: NestedKey = "observation",
        actions_key: NestedKey = "actions",
        hindsight_goal_key: NestedKey = ("hindsight", "goal"),
        hindsight_goal_id_key: NestedKey = ("hindsight", "goal_id"),
        action_key: NestedKey = "action",
        goal_tokens_key: NestedKey = "goal_tokens",
        observation_tokens_key: NestedKey = "observation_tokens",
        action_tokens_key: NestedKey = "action_tokens",
        hindsight_tokens_key: NestedKey = ("hindsight", "goal_tokens"),
    ) -> None:
        text_keys = [goal_key, observation_key, actions_key, hindsight_goal_key]
        written = [goal_tokens_key, observation_tokens_key, action_tokens_key, hindsight_tokens_key]
        super().__init__(in_keys=[*text_keys, hindsight_goal_id_key], out_keys=written)
        self._token_keys = written
        if keep not in (None, "head", "tail"):
            raise ValueError(f'keep ({keep!r}) must be "head", "tail" or None')
        if isinstance(goal_texts, str):
            raise ValueError(f"goal_texts ({goal_texts!r}) must be a list of texts")
        if tokenizer.pad_token_id is None:
            raise ValueError("tokenizer has no padding token: set tokenizer.pad_token")
        template = PromptTemplate() if template is None else template
        self.vocab_size = len(tokenizer)
        self.token_dtype = torch.int16 if self.vocab_size <= 2**15 else torch.int32
        lengths = {"goal": goal_length, "observation": observation_length, "action": action_length}
        self._caches = [
            TokenCache(tokenizer, template.lead(slot), slot, length, self.token_dtype, keep)
            for slot, length in lengths.items()
        ]
        self._memory = StepMemory(tokenizer, template, memory)
        self._action_key = action_key
        self._tokenizer, self._template = tokenizer, template
        self._composes: set[tuple[bool, bool]] = set()  # kinds of prompts that were checked
        self._goal_texts = goal_texts
        self._goal_table: Tensor | None = None

    @property
    def num_cut(self) -> dict[str, int]:
        """Different texts cut so far, of ``"goal"``, ``"observation"`` and ``"action"``."""
        return {cache.name: cache.num_cut for cache in self._caches}

    def set_container(self, container: Transform | EnvBase) -> None:
        """Called when the transform is put into an environment, whose goals may be others."""
        super().set_container(container)
        self._goal_table = None

    def _call(
        self, next_tensordict: TensorDictBase, counts: Tensor | None = None
    ) -> TensorDictBase:
        for key, out_key, cache in zip(self.in_keys[:3], self.out_keys, self._caches, strict=False):
            text = next_tensordict.get(key, None)
            if text is None:
                raise KeyError(
                    f"key {key!r} is missing: TokenizeText reads text that the environment "
                    "writes (is the environment made with text=True?)"
                )
            # Goal and observation are part of the prompt, whatever they say.
            next_tensordict.set(out_key, cache.tokens_of(text, always_lead=cache.name != "action"))
        self._check_composition(*(next_tensordict.get(key) for key in self.in_keys[:2]), counts)
        if self._memory.tokens:
            seen, actions = (next_tensordict.get(key) for key in self._token_keys[1:3])
            next_tensordict.set(self._token_keys[1], self._memory.begin(seen, actions, counts))
        text = next_tensordict.get(self.in_keys[3], None)
        ids = next_tensordict.get(self.in_keys[4], None)
        if text is not None:
            next_tensordict.set(self._token_keys[3], self._caches[0].tokens_of(text))
        elif ids is not None:
            next_tensordict.set(self._token_keys[3], self._tokens_of_ids(ids))
        return next_tensordict

    forward = _call  # outside environments, for data that holds text

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        # What a reset returns counts where it resets: elsewhere texts may be empty.
        return self._call(tensordict_reset, tensordict.get("_reset", None))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        following = self._call(next_tensordict)
        if not self._memory.tokens:
            return following
        key, actions_key = self._token_keys[1:3]
        before, action = tensordict[key], tensordict[self._action_key]
        played = tensordict[actions_key].take_along_dim(action[..., None, None], -2).squeeze(-2)
        after = self._memory.follow(before, played, following.get(key))
        if (moves := tensordict.get("_step", None)) is not None:
            after = after.where(moves.reshape(*action.shape, 1), before)
        return following.set(key, after)

    def _check_composition(
        self, goal: Tensor, observation: Tensor, counts: Tensor | None = None
    ) -> None:
        """Checks one prompt of each kind: with and without a goal, with and without an observation.

        Whether pieces compose hangs on how they begin. Prompts count where ``counts`` is True.
        """
        goal, observation = (text.reshape(-1, text.shape[-1]) for text in (goal, observation))
        if counts is not None:
            goal, observation = goal[counts.flatten()], observation[counts.flatten()]
        kinds = torch.stack([goal[:, 0] == 0, observation[:, 0] == 0], -1).tolist()
        for row, kind in enumerate(map(tuple, kinds)):
            if kind not in self._composes:
                texts = decode_text(goal[row]), decode_text(observation[row])
                steps = [(texts[1], EXAMPLE_ACTIONS[0])] if self._memory.tokens else []
                check_composition(self._tokenizer, self._template, [texts], steps=steps)
                self._composes.add(kind)

    def _tokens_of_ids(self, ids: Tensor) -> Tensor:
        if self._goal_table is None:
            # The id -1 stands for no text.
            self._goal_table = torch.from_numpy(self._caches[0].tokenize(["", *self._list_goals()]))
        self._goal_table = self._goal_table.to(ids.device)  # of an environment that may move
        try:
            return embedding(ids.long() + 1, self._goal_table)
        except IndexError as error:
            raise ValueError(
                f"{self.in_keys[4]!r} is from {ids.min()} to {ids.max()}, and must be ids of the "
                f"{len(self._goal_table) - 1} goal_texts, or -1: list more of them, or write others"
            ) from error

    def _list_goals(self) -> Sequence[str]:
        """The texts that ids of hindsight goals count in."""
        texts = self._goal_texts
        if texts is None:
            texts = getattr(self.container, "goal_texts", None)
        if texts is None:
            raise ValueError(
                f"goal_texts is needed: {self.in_keys[4]!r} holds ids of goals, and the "
                "environment has no attribute goal_texts that lists their texts"
            )
        texts = tuple(texts)
        while texts and not isinstance(texts[0], str):  # a batched environment: one list for each
            if any(tuple(other) != tuple(texts[0]) for other in texts[1:]):
                raise ValueError(
                    "goal_texts differ from one environment of the batch to another, so the ids in "
                    f"{self.in_keys[4]!r} are ambiguous: put TokenizeText into each of them instead"
                )
            texts = tuple(texts[0])
        return texts

    def transform_observation_spec(self, observation_spec: Composite) -> TensorSpec:
        """Adds the token keys to the specs."""
        *texts, ids = (observation_spec.get(key, None) for key in self.in_keys)
        if texts[3] is None and ids is not None:
            texts[3] = ids.unsqueeze(-1)
        # Hindsight may be missing; TorchRL wants specs of all that is listed here.
        self.out_keys = self._token_keys[:3] if texts[3] is None else self._token_keys
        caches = [*self._caches, self._caches[0]]
        for key, text, cache in zip(self._token_keys, texts, caches, strict=True):
            if text is not None:
                places = self._memory.places if cache is self._caches[1] else 0
                shape = (*text.shape[:-1], places + cache.length)
                observation_spec[key] = Bounded(
                    0, self.vocab_size - 1, shape, dtype=self.token_dtype, device=text.device
                )
        return observation_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """With a memory, adds the tokens that a step reads to the state."""
        if self._memory.tokens:
            written = self.parent.output_spec["full_observation_spec"].clone()
            written = self.transform_observation_spec(written)
            for key in self._token_keys[1:3]:
                input_spec["full_state_spec", key] = written[key]
        return input_spec

    def __repr__(self) -> str:
        lengths = [f"{cache.name}_length={cache.length}" for cache in self._caches]
        lengths += [f"memory={self._memory.tokens}"] if self._memory.tokens else []
        tokenizer = f"{type(self._tokenizer).__name__} of {self.vocab_size} tokens"
        return f"{type(self).__name__}({tokenizer}, {', '.join(lengths)})"
