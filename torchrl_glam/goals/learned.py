"""Goals drawn in proportion to a progress that is predicted from their embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.nn.utils.rnn import pad_sequence

from torchrl_glam.goals.sampler import GoalSampler
from torchrl_glam.models import CandidateTrunk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PASS = 128  # states that a language model reads at a time


class LearnedProgressGoals(GoalSampler):
    """Draws goals whose predicted success changes: MAGELLAN (section 3.2).

    A head on the embedding of a goal predicts success. It learns by binary cross-entropy on the
    newest episodes of each goal. Progress is the absolute difference from what the head's weights
    of ``lag`` updates before predict. With more than ``pool`` goals, only ``pool`` of them have a
    progress; they are drawn anew each time, as uniform draws are.

    It differs from the paper in three ways. No gradient reaches the language model; the paper
    trains LoRA adapters for this head. Embeddings are standardised, since those of different goals
    differ little, and the head takes more steps, with dropout: with hindsight, success changes
    within a hundred updates. And episodes are kept goal by goal, where the paper keeps the last
    ones of all: goals that are never reached are seldom pursued, so that these would be forgotten,
    and pursued again.

    Args:
        goal_texts: table of goals, such as ``env.goal_texts``.
        embeddings: of every goal, float ``[G, D]``; or a function from ids, ``int64 [n]``, to
            float ``[n, D]``, such as :func:`~torchrl_glam.goals.state_embeddings`.
        pool: goals that have a progress at a time. Default: 512.
        window: most episodes to learn from, whose goals are embedded each time. Default: 2048.
        per_goal: newest episodes of a goal to learn from. Default: 4.
        batch_size: episodes of a step. Default: 128.
        lr: learning rate of Adam. Default: 3e-3.
        every: updates after which the head learns and predicts. Default: 8.
        steps: of Adam, each time. Default: 64.
        dropout: share of an embedding's numbers that a step leaves out. Default: 0.2.
        lag: updates between the weights compared, or fewer if there were fewer; a multiple of
            ``every``. Default: 32.
        threshold: progress below this counts as 0. Default: 0.05.
        **settings: those of :class:`~torchrl_glam.goals.GoalSampler`.

    Raises:
        ValueError: if an argument is out of range or an embedding is not finite.

    Examples:
        >>> sampler = LearnedProgressGoals(["Grasp", "Grow"], torch.eye(2), every=1, lag=1)
        >>> for _ in range(5):
        ...     sampler.update([0, 1], [True, False])
        >>> sampler.predict(torch.tensor([1, 0])).round()
        tensor([0., 1.])
    """

    _shown = ("width",)
    _kept = ("updates", "progress", "_episodes", "_weights", "_moments", "head", "optimizer")

    def __init__(
        self,
        goal_texts: Sequence[str] | None,
        embeddings: Tensor | Callable[[Tensor], Tensor],
        *,
        pool: int = 512,
        window: int = 2048,
        per_goal: int = 4,
        batch_size: int = 128,
        lr: float = 3e-3,
        every: int = 8,
        steps: int = 64,
        dropout: float = 0.2,
        lag: int = 32,
        threshold: float = 0.05,
        **settings: Any,
    ) -> None:
        super().__init__(goal_texts, **settings)
        sizes = {"pool": pool, "window": window, "per_goal": per_goal, "batch_size": batch_size}
        sizes |= {"every": every, "steps": steps, "lag": lag}
        if wrong := [f"{name} ({value})" for name, value in sizes.items() if value < 1]:
            raise ValueError(f"{', '.join(wrong)} must be above 0")
        if lag % every:
            raise ValueError(f"lag ({lag}) must be a multiple of every ({every})")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout ({dropout}) must be in [0, 1)")
        if isinstance(embeddings, Tensor) and embeddings.shape[:-1] != (size := self.kinds.shape):
            raise ValueError(f"embeddings has shape {[*embeddings.shape]}, expected [{size[0]}, D]")
        self.embeddings = embeddings.__getitem__ if isinstance(embeddings, Tensor) else embeddings
        self.window, self.per_goal, self.batch_size = window, per_goal, batch_size
        self.every, self.steps, self.dropout = every, steps, dropout
        self.lag, self.threshold = lag, threshold
        self.pool, self.width = pool, self._embed(torch.tensor([0])).shape[-1]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._generator.initial_seed())
            self.head = nn.Sequential(nn.Linear(self.width, 128), nn.Tanh(), nn.Linear(128, 1))
        self.optimizer = torch.optim.Adam(self.head.parameters(), lr=lr)
        self._episodes = torch.zeros(0, 2, dtype=torch.int64)  # goals, and whether reached
        self._weights = parameters_to_vector(self.head.parameters()).detach()[None]  # oldest first
        self._moments = torch.stack((torch.zeros(self.width), torch.ones(self.width)))

    @torch.no_grad()
    def predict(self, goal_ids: Tensor) -> Tensor:
        """Success of goals ``int64 [n]`` as the head sees it now, ``float32 [n]``."""
        return self.head(self._standardise(self._embed(goal_ids))).sigmoid().squeeze(-1)

    def _embed(self, goal_ids: Tensor) -> Tensor:
        with torch.no_grad():
            rows = self.embeddings(goal_ids).detach().to("cpu", torch.float32)
        wrong = goal_ids[~rows.isfinite().all(-1)].tolist()
        if wrong:
            first = self.goal_texts[wrong[0]]
            raise ValueError(f"embeddings of {len(wrong)} goals are not finite, of {first!r} first")
        return rows

    def _standardise(self, rows: Tensor) -> Tensor:
        mean, scale = self._moments
        return (rows - mean) / scale

    def _learn(self, goal_ids: Tensor, successes: Tensor) -> None:
        new = torch.stack((goal_ids, successes.long()), 1)
        self._episodes = torch.cat((self._episodes, new))
        if self.updates % self.every:
            return
        self._episodes = self._newest(self._episodes)
        size, told = len(self.goal_texts), len(self._episodes)
        pool = torch.arange(size) if size <= self.pool else self._draw_evenly(self.pool)
        ids, places = torch.cat((self._episodes[:, 0], pool)).unique(return_inverse=True)
        rows = self._embed(ids)
        scale = rows.std(0, correction=0)
        self._moments = torch.stack((rows.mean(0), scale.masked_fill(scale < 1e-6, 1.0)))
        rows = self._standardise(rows)[places]
        for _ in range(self.steps if told else 0):
            drawn = torch.randint(told, (self.batch_size,), generator=self._generator)
            kept = torch.rand(self.batch_size, self.width, generator=self._generator)
            logits = self.head(rows[drawn] * (kept >= self.dropout) / (1 - self.dropout))
            self.optimizer.zero_grad()
            binary_cross_entropy_with_logits(logits, self._episodes[drawn, 1:].float()).backward()
            self.optimizer.step()
        weights = parameters_to_vector(self.head.parameters()).detach()[None]
        self._weights = torch.cat((self._weights, weights))[-(self.lag // self.every + 1) :]
        earlier = deepcopy(self.head)
        vector_to_parameters(self._weights[0], earlier.parameters())
        with torch.no_grad():
            now, before = (head(rows[told:]).sigmoid() for head in (self.head, earlier))
        change = (now - before).abs().squeeze(-1).double()
        progress = torch.zeros(size, dtype=torch.float64)
        progress[pool] = change.masked_fill(change < self.threshold, 0.0)
        self._set_progress(progress)

    def _newest(self, episodes: Tensor) -> Tensor:
        """The newest episodes of each goal, the earliest first."""
        order = episodes[:, 0].flip(0).argsort(stable=True)
        _, sizes = episodes[:, 0].unique(return_counts=True)
        begins = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        kept = len(episodes) - 1 - order[torch.arange(len(order)) - begins < self.per_goal]
        return episodes[kept.sort().values][-self.window :]


def prompt_tokens(
    trunk: CandidateTrunk, tokenizer: PreTrainedTokenizerBase, slot: str, texts: Sequence[str]
) -> Tensor:
    """Tokens of goals or observations, as prompts have them.

    Args:
        trunk: reads prompts.
        tokenizer: of the language model.
        slot: ``"goal"`` or ``"observation"``.
        texts: n of them.

    Returns:
        ``int64 [n, T]``, padded on the right.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> model, tokenizer = load_language_model("tiny")
        >>> trunk = make_trunk(model, tokenizer)
        >>> prompt_tokens(trunk, tokenizer, "goal", ["Grasp lion", "Grow lion"]).shape
        torch.Size([2, 2])
    """
    lead = trunk.prompt.template.lead(slot)
    rows = tokenizer([lead + text for text in texts], add_special_tokens=False).input_ids
    rows = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return pad_sequence(rows, batch_first=True, padding_value=trunk.prompt.pad_id)


def state_embeddings(trunk: CandidateTrunk, states: TensorDictBase) -> Callable[[Tensor], Tensor]:
    """Embeds goals by what a language model makes of a state that pursues them.

    What the critic reads of the candidate actions, in two ways: their mean by the policy that the
    log-likelihoods are, and the largest value in each dimension. The goal's text alone would not
    tell what its scene lacks.

    Args:
        trunk: reads the states. While it is trained, embeddings change.
        states: a state of each goal, such as its first, with the trunk's ``in_keys``, ``[G]``.

    Returns:
        A function from ids, ``int64 [n]``, to embeddings ``[n, 2 D]``, without gradient.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> model, tokenizer = load_language_model("tiny")
        >>> tokens = dict(zip(("goal", "observation"), torch.arange(40, 46).view(2, 3, 1)))
        >>> states = TensorDict({f"{name}_tokens": row for name, row in tokens.items()}, [3])
        >>> states["action_tokens"] = torch.tensor([[50], [51]]).expand(3, 2, 1)
        >>> states["action_mask"] = torch.ones(3, 2, dtype=torch.bool)
        >>> state_embeddings(make_trunk(model, tokenizer), states)(torch.tensor([1, 0])).shape
        torch.Size([2, 256])
    """
    scores_key, embedding_key, _ = trunk.out_keys
    states = states.select(*trunk.in_keys)

    @torch.no_grad()
    def embed(goal_ids: Tensor) -> Tensor:
        device, parts = next(trunk.parameters()).device, []
        for part in states[goal_ids.cpu()].split(_PASS):
            read = trunk(part.to(device))
            left_out = ~read[trunk.in_keys[-1]]
            shares = read[scores_key].masked_fill(left_out, -torch.inf).softmax(-1).unsqueeze(-1)
            left_out, rows = left_out.unsqueeze(-1), read[embedding_key]
            mean = (shares * rows.masked_fill(left_out, 0.0)).sum(-2)
            parts.append(torch.cat((mean, rows.masked_fill(left_out, -torch.inf).amax(-2)), -1))
        return torch.cat(parts)

    return embed
