"""The goals that training pursues, as the key ``goals`` of a configuration says."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torch.nn.functional import pad
from torchrl._utils import timeit
from torchrl.envs import EnvBase

from torchrl_glam.goals import (
    GoalSampler,
    ImaginedGoals,
    KindProgressGoals,
    LearnedProgressGoals,
    ProgressGoals,
    UniformGoals,
    imagine_goals,
    prompt_tokens,
    state_embeddings,
)
from torchrl_glam.models import CandidateTrunk
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.environments import make_bare_env, make_env
from torchrl_glam.runs.evaluation import EVAL_SEED, Policy, evaluate
from torchrl_glam.runs.judged import NAMED, SURE, JudgedGoals
from torchrl_glam.runs.records.statistics import goals_reached
from torchrl_glam.runs.seeds import seeded
from torchrl_glam.text import EnvDescription, describe_env

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KIND_EPISODES = 64
"""Episodes of each kind of goals that predictions are compared with."""

_FALLS = 8  # times that the share of uniform draws falls by a factor of e in a run
_POOL = 512  # goals that have a learned progress at a time
_RESET = 64  # instances that are reset at a time for the first states of goals


class PursuedGoals:
    """Chooses the goals of training by a sampler, which is told of the episodes that end.

    With ``goals=uniform`` there is no sampler: the environment draws its goals itself, and nothing
    is told or saved. The sampler is updated after every step of all instances. "Choosing goals" in
    the documentation says what the other values do, and ``hindsight_by`` and ``imagined``.

    Args:
        config, tokenizer, trunk: of the run; ``learned_progress`` reads the trunk's embeddings.

    Attributes:
        sampler: draws the goals, for the argument ``goal_sampler`` of the environment; or None.
        judge: names goals in hindsight, a :class:`~torchrl_glam.runs.judged.JudgedGoals`; or None.
        imagined: lets the environment pursue imagined goals, a transform; or None.
        keys: entries of steps that are read.

    Raises:
        ValueError: if the environment has no table of goals, or does not say what the sampler
            needs: the goal pursued, the kinds of goals, or the goals reached.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> model, tokenizer = load_language_model("tiny")
        >>> config, trunk = RecipeConfig(goals="kind_progress"), make_trunk(model, tokenizer)
        >>> PursuedGoals(config, tokenizer, trunk).sampler
        KindProgressGoals(window=100)
    """

    def __init__(
        self, config: RecipeConfig, tokenizer: PreTrainedTokenizerBase, trunk: CandidateTrunk
    ) -> None:
        self.sampler: GoalSampler | None = None
        self.judge: JudgedGoals | None = None
        self.imagined: ImaginedGoals | None = None
        self.keys: tuple[NestedKey, ...] = ()
        self._steps, self._part = 0, -1
        self._counts = [0, 0, 0]  # episodes: all, that pursued imagined goals, and reached them
        judged = config.hindsight_by == "judge"
        if config.goals == "uniform" and not judged and not config.goal_words:
            return
        with seeded(config.seed):
            env = make_bare_env(config, 1, config.seed)
            game = describe_env(env)
            env.close(raise_if_closed=False)
        self._kind, _, hindsight = config.goals.partition("+")
        self.keys = ("goal_id", NAMED) if hindsight and not judged else ("goal_id",)
        self._check(config, game)
        self._game, self._config, self._tokenizer = game, config, tokenizer
        self._num_known = len(game.goal_texts)
        self._origins = torch.arange(self._num_known)  # the goal itself, of imagined ones another
        if config.imagined:
            self._game = self._imagine(trunk)
        if judged:
            self.judge = JudgedGoals(config, tokenizer, trunk, self._game, self._num_known)
            self.keys = self.judge.keys
        if self._kind != "uniform" or config.goal_words or config.imagined:
            self.sampler = self._make(bool(hindsight), trunk)
        if config.imagined:
            self.imagined = ImaginedGoals(
                self.sampler,
                self._num_known,
                self.judge.judge,
                sure=SURE,
                success_key=game.success_key,
            )
        self._used = [self._with(words) for words in config.goal_words]
        self._exchange()

    def _check(self, config: RecipeConfig, game: EnvDescription) -> None:
        needs = {"goal_texts, a table of goals": game.goal_texts}
        needs |= {str(key): key in game.entries for key in self.keys}
        by_kind = self._kind == "learned_progress" or config.hindsight_by == "judge"
        if self._kind == "kind_progress" or (by_kind and len(game.goal_kinds) > 1):
            needs["goal_kind_ids, the kinds of its goals"] = game.goal_kind_ids is not None
        for need, met in needs.items():
            if not met:
                asks = "hindsight_by" if config.hindsight_by == "judge" else "goal_words"
                asks = "goals" if self._kind != "uniform" else asks
                raise ValueError(
                    f"{asks} ({getattr(config, asks)}) needs an environment that has {need}, and "
                    f"{config.env_class} has none: use another environment, or {asks}="
                    f"{getattr(RecipeConfig(), asks)}"
                )

    def _imagine(self, trunk: CandidateTrunk) -> EnvDescription:
        """The game with imagined goals behind its own, each of the kind of its origin."""
        game, known = self._game, list(self._game.goal_texts)
        found = imagine_goals(known, self._config.imagined, seed=self._config.seed)
        tokens = prompt_tokens(trunk, self._tokenizer, "goal", [*known, *found])
        length = (tokens != self._tokenizer.pad_token_id).sum(1)
        fits = length[len(known) :] <= length[: len(known)].max()
        found = {text: of for (text, of), fit in zip(found.items(), fits, strict=True) if fit}
        if not found:
            raise ValueError(
                f"imagined ({self._config.imagined}) must be 0 here: exchanging words of the "
                "goals of the table composes no goal that is new and as short"
            )
        kinds = torch.as_tensor(
            [0] * len(known) if game.goal_kind_ids is None else game.goal_kind_ids
        )
        self._origins = torch.tensor([*range(len(known)), *found.values()])
        kinds = kinds[self._origins]
        return replace(game, goal_texts=(*known, *found), goal_kind_ids=kinds)

    def _make(self, hindsight: bool, trunk: CandidateTrunk) -> GoalSampler:
        """The sampler; what it draws uniformly, it draws as the environment alone does."""
        game, table = self._game, self._game.goal_texts
        config, settings = self._config, {"kinds": game.goal_kind_ids, "hindsight": hindsight}
        settings |= {"seed": config.seed, "decay": config.total_steps / config.num_envs / _FALLS}
        if self._kind == "kind_progress":
            return KindProgressGoals(table, **settings)
        if game.goal_kind_ids is not None and game.goal_kind_prior is not None:
            prior = torch.tensor(game.goal_kind_prior, dtype=torch.float64)
            settings["shares"] = (prior / prior.sum()).tolist()
        if self._kind in ("progress", "uniform"):
            return (ProgressGoals if self._kind == "progress" else UniformGoals)(table, **settings)
        # So seldom that predictions take a twentieth of the time, with PPO-GLAM too. Beside the
        # pool of a large table the goals of the last episodes are read, so these are fewer.
        large = len(table) > _POOL
        every = max(8, 2 * config.update_every // config.num_envs) * (1 + large)
        settings |= {"pool": _POOL, "window": _POOL if large else 4 * _POOL}
        settings |= {"every": every, "lag": 4 * every}
        embed = state_embeddings(trunk, self._first_states(trunk))
        return LearnedProgressGoals(table, embed, **settings)

    def _first_states(self, trunk: CandidateTrunk) -> TensorDictBase:
        """A first state of every goal, ``[G]``; an imagined one begins where its origin does."""
        known = torch.arange(self._num_known)
        env = self._env_of(known, min(len(known), _RESET))
        resets = math.ceil(len(known) / _RESET)
        states = torch.cat([env.reset().select(*trunk.in_keys) for _ in range(resets)])
        env.close(raise_if_closed=False)
        states, goals = states[self._origins], trunk.in_keys[0]
        if len(states) > len(known):
            texts = self._game.goal_texts[len(known) :]
            tokens = prompt_tokens(trunk, self._tokenizer, "goal", texts)
            spare = states[goals].shape[-1] - tokens.shape[-1]
            states[goals][len(known) :] = pad(tokens, (0, spare), value=trunk.prompt.pad_id)
        return states

    def _env_of(self, goal_ids: Tensor, num_envs: int) -> EnvBase:
        """Instances whose resets pursue these goals, one after another and from the first again."""
        order = cycle(goal_ids.tolist())
        return make_env(
            self._config,
            self._tokenizer,
            num_envs=num_envs,
            goal_sampler=lambda _, n: torch.tensor([next(order) for _ in range(n)]),
        )

    def _with(self, words: str) -> Tensor:
        """The goals in whose text a regular expression is found, bool ``[G]``."""
        try:
            found = [bool(re.search(words, text)) for text in self._game.goal_texts]
        except re.error as error:
            raise ValueError(f"goal_words has {words!r}, no regular expression: {error}") from None
        if not any(found):
            raise ValueError(f"goal_words has {words!r}, which is found in no goal of the table")
        return torch.tensor(found)

    def _exchange(self) -> None:
        """Lets the sampler draw the goals of this part of the run."""
        part = self._steps * len(self._used) // self._config.total_steps
        if part != self._part and part < len(self._used):
            self.sampler.use(self._used[part])
            self._part = part

    def update(self, steps: TensorDictBase) -> None:
        """Tells the sampler of the episodes that end in steps ``[num_envs, T]``."""
        if self.sampler is None:
            return
        with timeit("time/goals"):
            for step in steps.unbind(1):  # the earliest episodes first
                after, pursued = step["next"], step["goal_id"]
                ended, named = after["done"].view(-1), None
                reached = goals_reached(after, self._game.success_key)[ended]
                if self.sampler.hindsight:  # the goal pursued is told already
                    named = after[NAMED]
                    named = named.masked_fill(named == pursued.unsqueeze(-1), -1)
                ids = pursued[ended]
                self.sampler.update(ids, reached, named)
                other = ids >= self._num_known
                for at, some in enumerate((ended, other, other & reached)):
                    self._counts[at] += int(some.sum())
        self._steps += steps.numel()
        self._exchange()

    def measure(self, policy: Policy) -> dict[str, float]:
        """The metrics ``goals/…``, ``imagined/…`` and ``judge/…`` of the page "Choosing goals"."""
        judged = {} if self.judge is None else self.judge.measure()
        ended, other, reached = self._counts
        self._counts = [0, 0, 0]
        if other:
            judged |= {"imagined/pursued": other / ended, "imagined/reached": reached / other}
        if not isinstance(self.sampler, LearnedProgressGoals):
            return judged
        env, chosen, kinds = self._kind_env
        measured = evaluate(policy, env, seed=EVAL_SEED)
        out, distances = {}, []
        for index, kind in enumerate(self._game.goal_kinds):
            if (rows := chosen[kinds == index]).numel():
                told = self.sampler.predict(rows).mean().item()
                true = measured[f"success/{kind}"]
                out |= {f"goals/predicted/{kind}": told, f"goals/measured/{kind}": true}
                distances.append(abs(told - true))
        return judged | out | {"goals/error": sum(distances) / len(distances)}

    @cached_property
    def _kind_env(self) -> tuple[EnvBase, Tensor, Tensor]:
        """Instances that pursue as many goals of each kind, these goals, and their kinds."""
        kinds = self.sampler.kinds[: self._num_known]
        count = min(KIND_EPISODES, self._config.eval_episodes)
        generator = torch.Generator().manual_seed(EVAL_SEED)
        rows = [(kinds == kind).nonzero().flatten() for kind in kinds.unique()]
        drawn = [row[torch.randint(len(row), (count,), generator=generator)] for row in rows]
        chosen = torch.cat(drawn)
        return self._env_of(chosen, len(chosen)), chosen, kinds[chosen]

    def close(self) -> None:
        """Closes the instances that :meth:`measure` plays."""
        if "_kind_env" in vars(self):
            self._kind_env[0].close(raise_if_closed=False)

    def state_dict(self) -> dict[str, Any]:
        """The state of sampler and judge."""
        parts = {"sampler": self.sampler, "judge": self.judge}
        states = {name: part and part.state_dict() for name, part in parts.items()}
        return states | {"steps": self._steps, "counts": list(self._counts)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores both; a ValueError names another sampler or another table of goals."""
        for name, part in (("sampler", self.sampler), ("judge", self.judge)):
            if part is not None:
                part.load_state_dict(state_dict[name])
        if self.sampler is not None:
            self._steps, self._counts = state_dict["steps"], list(state_dict["counts"])
            self._exchange()
