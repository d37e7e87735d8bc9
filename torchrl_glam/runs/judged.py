"""Goals named in hindsight by a judge instead of the social partner: ``hindsight_by=judge``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.functional import pad
from torchrl._utils import timeit

from torchrl_glam.goals import WordJudge, prompt_tokens
from torchrl_glam.goals.sampler import check_ids
from torchrl_glam.models import CandidateTrunk
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.records.statistics import goals_reached
from torchrl_glam.text import EnvDescription, decode_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAMED = ("hindsight", "goal_id")
_TEXTS = ("observation", "actions")
_MOST = 32  # goals named after a step
SURE = 1.0
"""Log-odds above which a goal counts as reached; among what a judge learns from, more goals are."""


class JudgedGoals:
    """Writes the goals that a judge names where a social partner would.

    Named are goals of log-odds above 1, at most 32 after a step, each once an episode, and not the
    goal pursued; of goals with equal texts the first. The judge learns from a step after it has
    named its goals. What a social partner names is compared with, and not used.

    Args:
        config, tokenizer, trunk: of the run.
        game: what the environment says of itself, with imagined goals behind its own.
        num_known: goals of the environment.

    Attributes:
        keys: entries of steps that are read.
        judge: the judge, of all goals of the environment's table.
    """

    def __init__(
        self,
        config: RecipeConfig,
        tokenizer: PreTrainedTokenizerBase,
        trunk: CandidateTrunk,
        game: EnvDescription,
        num_known: int,
    ) -> None:
        table, kinds = game.goal_texts, game.goal_kind_ids
        self.keys = ("goal_id", NAMED, *_TEXTS)
        self.judge = WordJudge(table, seed=config.seed)
        self._success_key, self._num_known = game.success_key, num_known
        self._tokens = prompt_tokens(trunk, tokenizer, "goal", table)
        self._pad, self._slots = tokenizer.pad_token_id, min(_MOST, len(table))
        self._kinds = torch.as_tensor([0] * len(table) if kinds is None else kinds)
        first = {text: i for i, text in reversed([*enumerate(table)])}
        self._again = torch.tensor([first[text] < i for i, text in enumerate(table)])
        self._told = self._again.repeat(config.num_envs, 1)
        self._counts = torch.zeros(3, dtype=torch.int64)  # named rightly, named, to be named

    def __call__(self, steps: TensorDictBase) -> TensorDictBase:
        """The steps ``[num_envs, T]`` with the goals that they reached; the judge learns from them.

        They are without texts, which nothing else reads.
        """
        with timeit("time/judge"):
            ids = torch.stack([self._name(step) for step in steps.unbind(1)], 1)
        partner = steps["next"].get(NAMED, None)
        if partner is not None:
            right = (ids.unsqueeze(-1) == partner.unsqueeze(-2)).any(-1) & (ids >= 0)
            named = (ids >= 0) & (ids < self._num_known)  # a partner knows no other
            self._counts += torch.stack([x.sum() for x in (right, named, partner >= 0)])
        none, like = ids < 0, steps["goal_tokens"]
        wider = like.shape[-1] - self._tokens.shape[-1]
        tokens = pad(self._tokens, (0, wider), value=self._pad).to(like.dtype)
        named = {
            "goal_id": ids,
            "goal_tokens": tokens[ids].masked_fill(none.unsqueeze(-1), self._pad),
            "kind": self._kinds[ids].masked_fill(none, -1).to(steps["goal_kind"].dtype),
        }
        steps = steps.exclude(*_TEXTS, *(("next", key) for key in (*_TEXTS, "hindsight")))
        return steps.set(("next", "hindsight"), TensorDict(named, steps.batch_size))

    def _name(self, step: TensorDictBase) -> Tensor:
        """Goals that one step of all instances reached, ``int64 [num_envs, H]``, -1 for none."""
        after, pursued = step["next"], check_ids("goal_id", step["goal_id"], 0, len(self._kinds))
        played = zip(decode_text(step["actions"]), step["action"].tolist(), strict=True)
        before, then = decode_text(step["observation"]), decode_text(after["observation"])
        words = self.judge.read(before, [row[i] for row, i in played], then)
        odds = self.judge(words).masked_fill(self._told, -torch.inf)
        odds, ids = odds.scatter(1, pursued.unsqueeze(1), -torch.inf).topk(self._slots)
        named = odds > SURE
        self._told |= torch.zeros_like(self._told).scatter(1, ids, named)
        self._told[after["done"].view(-1)] = self._again
        own = pursued < self._num_known  # the judge itself says which others are reached
        reached = goals_reached(after, self._success_key).view(-1)
        self.judge.learn(words[own], pursued[own], reached[own])
        return ids.where(named, -1)

    def measure(self) -> dict[str, float]:
        """``judge/precision`` and ``judge/recall`` since the last call, where there is a partner.

        A goal that is named after another step than the partner's counts as wrong.
        """
        right, named, reached = self._counts.tolist()
        self._counts.zero_()
        shares = {"precision": (right, named), "recall": (right, reached)}
        return {f"judge/{name}": some / of for name, (some, of) in shares.items() if reached and of}

    def state_dict(self) -> dict[str, Any]:
        """The judge, what was named in the present episodes, and counts for the measurement."""
        return {"judge": self.judge.state_dict(), "told": self._told, "counts": self._counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what :meth:`state_dict` returned."""
        self.judge.load_state_dict(state_dict["judge"])
        self._told, self._counts = state_dict["told"].clone(), state_dict["counts"].clone()
