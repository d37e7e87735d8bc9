"""From text to tokens at the environment's boundary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Composite
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import Transform
from transformers import PreTrainedTokenizerBase

from torchrl_glam.envs.playground import PlaygroundTextEnv
from torchrl_glam.envs.template import PromptTemplate
from torchrl_glam.envs.vocabulary import OBJECTS

_CACHE_SIZE = 100_000


class TokenizeText(Transform):
    """Tokenises goal, observation, candidate actions and hindsight goals.

    Works on any environment that follows the text contract: text is held in ``uint8`` tensors
    (UTF-8, zero padded; see :mod:`torchrl_glam.envs.text`). Text stays in the tensordict; an
    ``ExcludeTransform`` after this one drops it where it is not wanted. Texts seen before are
    taken from a cache.

    Notation: B batch shape of the environment, A candidate actions, H hindsight goals.

    Args:
        tokenizer: tokenizer of the language model, with a padding token.
        goal_length: tokens kept for a goal (Tg). Default 24.
        observation_length: tokens kept for an observation (To). Default 160.
        action_length: tokens kept for a candidate action (Ta). Default 8.
        template: the prompt that the tokens will go into; it says which white space stands in
            front of each piece. Default: :class:`~torchrl_glam.envs.PromptTemplate`.
        goal_key, observation_key, actions_key, hindsight_goal_key: text to read. Defaults:
            ``"goal"``, ``"observation"``, ``"actions"``, ``("hindsight", "goal")``. The last may
            be missing from the environment.
        goal_tokens_key, observation_tokens_key, action_tokens_key, hindsight_tokens_key: tokens to
            write, right-padded: ``[*B, Tg]``, ``[*B, To]``, ``[*B, A, Ta]``, ``[*B, H, Tg]``,
            int16 if the vocabulary fits, else int32. Defaults: ``"goal_tokens"``,
            ``"observation_tokens"``, ``"action_tokens"``, ``("hindsight", "goal_tokens")``.

    Raises:
        ValueError: if the tokenizer has no padding token, or, when a text is read, if it has more
            tokens than the length kept for it.

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
        template: PromptTemplate | None = None,
        goal_key: NestedKey = "goal",
        observation_key: NestedKey = "observation",
        actions_key: NestedKey = "actions",
        hindsight_goal_key: NestedKey = ("hindsight", "goal"),
        goal_tokens_key: NestedKey = "goal_tokens",
        observation_tokens_key: NestedKey = "observation_tokens",
        action_tokens_key: NestedKey = "action_tokens",
        hindsight_tokens_key: NestedKey = ("hindsight", "goal_tokens"),
    ) -> None:
        in_keys = [goal_key, observation_key, actions_key, hindsight_goal_key]
        out_keys = [
            goal_tokens_key,
            observation_tokens_key,
            action_tokens_key,
            hindsight_tokens_key,
        ]
        super().__init__(in_keys=in_keys, out_keys=out_keys)
        if tokenizer.pad_token_id is None:
            raise ValueError(
                "tokenizer has no padding token: set tokenizer.pad_token (for example to "
                "tokenizer.eos_token)"
            )
        template = PromptTemplate() if template is None else template
        self._tokenizer = tokenizer
        self.pad_id: int = tokenizer.pad_token_id
        self.vocab_size = len(tokenizer)
        self.token_dtype = torch.int16 if self.vocab_size <= 2**15 else torch.int32
        slots = ("goal", "observation", "action", "goal")
        self._leads = [template.lead(slot) for slot in slots]
        self._names = [f"{slot}_length" for slot in slots]
        self._lengths = [goal_length, observation_length, action_length, goal_length]
        for name, length in zip(self._names, self._lengths, strict=True):
            if length < 1:
                raise ValueError(f"{name} ({length}) must be at least 1")
        self._caches: list[dict[bytes, np.ndarray]] = [{}, {}, {}, {}]
        self._caches[3] = self._caches[0]

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for index, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            text = next_tensordict.get(in_key, None)
            if text is not None:
                next_tensordict.set(out_key, self._tokenize(text, index))
            elif index < 3:
                raise KeyError(
                    f"key {in_key!r} is missing: TokenizeText reads text that the environment "
                    "writes (is the environment made with text=True?)"
                )
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _tokenize(self, text: Tensor, index: int) -> Tensor:
        rows = text.cpu().reshape(-1, text.shape[-1]).numpy()
        written = rows[:, 0] != 0
        out = np.full((rows.shape[0], self._lengths[index]), self.pad_id, dtype=np.int64)
        cache = self._caches[index]
        where = written.nonzero()[0]
        keys = [rows[i].tobytes() for i in where]
        missing = list(dict.fromkeys(key for key in keys if key not in cache))
        if missing:
            if len(cache) + len(missing) > _CACHE_SIZE:
                cache.clear()
                missing = list(dict.fromkeys(keys))
            self._fill(cache, missing, index)
        if keys:
            out[where] = np.stack([cache[key] for key in keys])
        tokens = torch.from_numpy(out).to(self.token_dtype)
        return tokens.view(*text.shape[:-1], -1).to(text.device)

    def _fill(self, cache: dict[bytes, np.ndarray], keys: Sequence[bytes], index: int) -> None:
        length = self._lengths[index]
        texts = [key.rstrip(b"\0").decode() for key in keys]
        lead = self._leads[index]
        encoded = self._tokenizer([lead + text for text in texts], add_special_tokens=False)
        for key, text, ids in zip(keys, texts, encoded.input_ids, strict=True):
            if len(ids) > length:
                raise ValueError(
                    f"{self._names[index]} ({length}) is too small: {text!r} has {len(ids)} tokens"
                )
            row = np.full(length, self.pad_id, dtype=np.int64)
            row[: len(ids)] = ids
            cache[key] = row

    def transform_observation_spec(self, observation_spec: Composite) -> TensorSpec:
        """Adds the token keys to the specs."""
        for index, (in_key, out_key) in enumerate(zip(self.in_keys, self.out_keys, strict=True)):
            text = observation_spec.get(in_key, None)
            if text is not None:
                observation_spec[out_key] = Bounded(
                    0,
                    self.vocab_size - 1,
                    shape=(*text.shape[:-1], self._lengths[index]),
                    dtype=self.token_dtype,
                    device=text.device,
                )
        return observation_spec


def playground_lengths(
    env: PlaygroundTextEnv,
    tokenizer: PreTrainedTokenizerBase,
    template: PromptTemplate | None = None,
) -> dict[str, int]:
    """Lengths that hold every text of a Playground-Text environment.

    Args:
        env: the environment.
        tokenizer: tokenizer of the language model.
        template: the prompt. Default: :class:`~torchrl_glam.envs.PromptTemplate`.

    Returns:
        ``goal_length``, ``observation_length`` and ``action_length`` for :class:`TokenizeText`:
        the longest goal, the longest action, and an observation in which the object with the most
        tokens stands everywhere.

    Examples:
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.models.loading import load_tokenizer
        >>> playground_lengths(PlaygroundTextEnv(num_objects=3), load_tokenizer("tiny"))
        {'goal_length': 9, 'observation_length': 20, 'action_length': 3}
    """
    template = PromptTemplate() if template is None else template

    def longest(texts: Sequence[str], slot: str) -> tuple[int, str]:
        ids = tokenizer([template.lead(slot) + text for text in texts], add_special_tokens=False)
        lengths = [len(row) for row in ids.input_ids]
        return max(lengths), texts[lengths.index(max(lengths))]

    goal_length, _ = longest(env.goals.texts, "goal")
    action_length, action = longest([f"Go to {item}" for item in OBJECTS], "action")
    item = action.removeprefix("Go to ")
    items = ", ".join([item] * env.num_objects)
    observation = (
        f"You see: {items}\nYou are on: {item}\nYou are holding: {item}\nYou have grown: {items}"
    )
    observation_length, _ = longest([observation], "observation")
    return {
        "goal_length": goal_length,
        "observation_length": observation_length,
        "action_length": action_length,
    }
