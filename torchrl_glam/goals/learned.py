"""Goals drawn in proportion to a progress that is predicted from their embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.rnn import pad_sequence

from torchrl_glam.goals.sampler import GoalSampler
from torchrl_glam.models import CandidateTrunk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CHUNK = 4096  # goals whose embeddings are in memory at a time
_PASS = 256  # goals that a language model reads at a time


class LearnedProgressGoals(GoalSampler):
    """Draws goals whose predicted success changes: MAGELLAN (section 3.2).

    A head on the embedding of a goal predicts success. Each update is a step of binary
    cross-entropy on the last episodes, the newer ones drawn more often. Progress is the absolute
    difference from what the head predicted ``lag`` updates before.

    It differs from the paper in three ways. No gradient reaches the language model; the paper
    trains LoRA adapters for this head. The goal is embedded without the first observation, since
    its scene is drawn later; in the paper it is part of the goal. Earlier predictions are kept, not
    earlier weights: a language model that goes on learning would change what these predict.

    Args:
        goal_texts: table of goals, such as ``env.goal_texts``.
        embeddings: of every goal, float ``[G, D]``; or a function from ids, ``int64 [n]``, to
            float ``[n, D]``, asked for at most 4,096 at a time, such as
            :func:`~torchrl_glam.goals.prompt_embeddings`.
        window: last episodes to learn from. Default: 5,000.
        batch_size: of a step. Default: 256.
        lr: learning rate of Adam. Default: 1e-4.
        every: updates after which all goals are predicted. Default: 32.
        lag: updates between the predictions compared, or fewer if there were fewer; a multiple of
            ``every``. Default: 96.
        threshold: progress below is none. Default: 0.01.
        **settings: those of :class:`~torchrl_glam.goals.GoalSampler`.

    Attributes:
        competence: the newest prediction of success of every goal, ``float32 [G]``.

    Raises:
        ValueError: if an argument is out of range or an embedding is not finite.

    Examples:
        >>> sampler = LearnedProgressGoals(["Grasp", "Grow"], torch.eye(2), lr=0.05, every=1, lag=1)
        >>> for _ in range(20):
        ...     sampler.update([0, 1], [True, False])
        >>> sampler.competence.round()
        tensor([1., 0.])
    """

    _shown, _kept = ("width",), ("_goal_ids", "_successes", "_past", "head", "optimizer")

    def __init__(
        self,
        goal_texts: Sequence[str] | None,
        embeddings: Tensor | Callable[[Tensor], Tensor],
        *,
        window: int = 5000,
        batch_size: int = 256,
        lr: float = 1e-4,
        every: int = 32,
        lag: int = 96,
        threshold: float = 0.01,
        **settings: Any,
    ) -> None:
        super().__init__(goal_texts, **settings)
        if min(window, batch_size, every, lag) < 1 or lag % every:
            sizes = f"window ({window}), batch_size ({batch_size}) and every ({every})"
            raise ValueError(f"{sizes} must be above 0, and lag ({lag}) a multiple of every")
        if isinstance(embeddings, Tensor) and len(embeddings) != (size := len(goal_texts)):
            raise ValueError(f"embeddings has {len(embeddings)} rows, expected {size}, one a goal")
        self.embeddings, self.window, self.batch_size = embeddings, window, batch_size
        self.every, self.lag, self.threshold = every, lag, threshold
        self.width = self._embed(torch.tensor([0])).shape[-1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._generator.initial_seed())
            self.head = nn.Sequential(nn.Linear(self.width, 128), nn.Tanh(), nn.Linear(128, 1))
        self.optimizer = torch.optim.Adam(self.head.parameters(), lr=lr)
        self._goal_ids = torch.zeros(0, dtype=torch.int64)
        self._successes = torch.zeros(0, dtype=torch.bool)
        self._past = self._predict()  # the oldest first
        self._measure()

    def _embed(self, goal_ids: Tensor) -> Tensor:
        given, table = self.embeddings, isinstance(self.embeddings, Tensor)
        with torch.no_grad():
            rows = given[goal_ids.to(given.device)] if table else given(goal_ids)
        rows = rows.detach().to("cpu", torch.float32)
        wrong = goal_ids[~rows.isfinite().all(-1)].tolist()
        if wrong:
            first = self.goal_texts[wrong[0]]
            raise ValueError(f"embeddings of {len(wrong)} goals are not finite, of {first!r} first")
        return rows

    @torch.no_grad()
    def _predict(self) -> Tensor:
        chunks = torch.arange(len(self.goal_texts)).split(_CHUNK)
        return torch.cat([self.head(self._embed(ids)).sigmoid() for ids in chunks]).T

    def _learn(self, goal_ids: Tensor, successes: Tensor) -> None:
        self._goal_ids = torch.cat((self._goal_ids, goal_ids))[-self.window :]
        self._successes = torch.cat((self._successes, successes))[-self.window :]
        if len(self._goal_ids):
            recency = torch.arange(1, len(self._goal_ids) + 1, dtype=torch.float64)
            drawn = self._in_proportion(recency.cumsum(0), self.batch_size)
            logits = self.head(self._embed(self._goal_ids[drawn])).squeeze(-1)
            self.optimizer.zero_grad()
            binary_cross_entropy_with_logits(logits, self._successes[drawn].float()).backward()
            self.optimizer.step()
        if self.updates % self.every == 0:
            self._past = torch.cat((self._past, self._predict()))[-(self.lag // self.every + 1) :]
            self._measure()

    def _measure(self) -> None:
        self.competence = self._past[-1]
        progress = (self.competence - self._past[0]).abs().double()
        self._set_progress(progress.masked_fill(progress < self.threshold, 0.0))


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


def prompt_embeddings(
    trunk: CandidateTrunk, tokenizer: PreTrainedTokenizerBase, goal_texts: Sequence[str]
) -> Callable[[Tensor], Tensor]:
    """Embeds goals by a language model that reads their prompts, with an empty observation.

    Args:
        trunk: reads prompts. While it is trained, embeddings change.
        tokenizer: of the language model.
        goal_texts: table of goals.

    Returns:
        A function from ids, ``int64 [n]``, to embeddings ``[n, D]``, without gradient.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> model, tokenizer = load_language_model("tiny")
        >>> texts = ["Grasp red lion", "Grow red lion"]
        >>> embed = prompt_embeddings(make_trunk(model, tokenizer), tokenizer, texts)
        >>> embed(torch.tensor([1, 0, 1])).shape
        torch.Size([3, 128])
    """
    goals = prompt_tokens(trunk, tokenizer, "goal", goal_texts)
    nothing = prompt_tokens(trunk, tokenizer, "observation", [""])

    @torch.no_grad()
    def embed(goal_ids: Tensor) -> Tensor:
        device, parts = next(trunk.parameters()).device, []
        ids, back = goal_ids.cpu().unique(return_inverse=True)
        for part in goals[ids].split(_PASS):
            empty = nothing.expand(len(part), -1)
            parts.append(trunk.read_prompts(*trunk.prompt(part.to(device), empty.to(device))))
        return torch.cat(parts)[back.to(device)]

    return embed
