"""Hindsight without a social partner: a judge that the episodes' own rewards teach."""

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag, pad

from torchrl_glam.goals.sampler import Resumable, check_ids, name_table

_WIDTH = 8  # of what is learned for pairs of words
_LAST = 4  # words of a goal that are told apart from those before them
_BATCH, _UPDATES = 128, 4  # steps of an update, and updates for each call
# Initial weight of each role of a goal's word: in the action, seen more often than before, seen
# less often, in a new line, its count changed, seen, constant.
_ROLES = (2.0, 0.0, 0.0, 0.0, 2.0, 0.0, -2.0)


class WordJudge(Resumable):
    """Says which goals a step reached, by words; learns from the rewards for the goals pursued.

    Each step of an episode tells whether it reached the goal pursued: a labelled pair of a step and
    a goal. As many pairs with other goals, drawn at random, count as missed: few steps reach them.
    For each word of a goal the judge weighs whether it is in the action, in what changed, and in
    what is seen afterwards, with weights shared by all words. Each word also has weights for the
    other words of the step. So two matrix products judge all goals, also those never pursued.

    SAC-GLAM (Gaven et al., 2024, section 2.3) leaves open whether a language model can name goals
    in place of a social partner. This judge is no language model: it learns from fewer rewards than
    one. It needs goals that share words with what the game says.

    Notation: N steps, G goals, V words: those of goals, and buckets for all others, by hash.

    Args:
        goal_texts: the goals to judge, two or more.
        buckets: for words of no goal. Default: 128.
        window: last steps to learn from, 4 V bytes each. Default: 8,192.
        lr: learning rate of AdamW; five times that for what is alike for all words. Default: 0.01.
        weight_decay: of what is learned for each word. Default: 0.3.
        seed: of weights and batches. Default: 0.

    Raises:
        ValueError: if goals are fewer than two or without a word, or an argument is out of range.

    Examples:
        >>> judge = WordJudge(["Grasp lion", "Grasp cow"])
        >>> seen, held = "See: lion. Hold: nothing", "See: nothing. Hold: lion"
        >>> steps = judge.read([seen, seen], ["Grasp", "Wait"], [held, seen])
        >>> for _ in range(20):
        ...     judge.learn(steps, torch.tensor([0, 0]), torch.tensor([True, False]))
        >>> judge(steps) > 0
        tensor([[ True, False],
                [False, False]])
    """

    _kept = ("_steps", "_pursued", "_reached", "_told", "weights", "optimizer")

    def __init__(
        self,
        goal_texts: Sequence[str],
        *,
        buckets: int = 128,
        window: int = 8192,
        lr: float = 0.01,
        weight_decay: float = 0.3,
        seed: int = 0,
    ) -> None:
        if isinstance(goal_texts, str):
            raise ValueError(f"goal_texts ({goal_texts!r}) must be a list of goals")
        if len(goal_texts) < 2 or min(buckets, window) < 1 or not min(lr, weight_decay) >= 0:
            raise ValueError(
                f"goal_texts ({len(goal_texts)} goals) must be two or more, buckets ({buckets}) "
                f"and window ({window}) at least 1, lr ({lr}) and weight_decay ({weight_decay}) "
                "at least 0"
            )
        goals = [_words(text) for text in goal_texts]
        for text, words in zip(goal_texts, goals, strict=True):
            if not words:
                raise ValueError(f"goal_texts has {text!r}, without a word: write goals in words")
        self._made = {"judge": f"WordJudge(buckets={buckets}, window={window})"}
        self._made["goals"] = name_table(goal_texts)
        self._ids = {word: i for i, word in enumerate(dict.fromkeys(w for g in goals for w in g))}
        self._buckets, self._size = buckets, len(self._ids) + buckets
        size = self._size
        self._goals = torch.full((len(goals), max(map(len, goals))), 2 * size)  # 2 V for no word
        for row, words in zip(self._goals, goals, strict=True):
            first = len(words) - _LAST  # words before it stand apart
            ids = [self._ids[word] + size * (at < first) for at, word in enumerate(words)]
            row[: len(ids)] = torch.tensor(ids)
        self._generator = torch.Generator().manual_seed(seed)
        each = {"alone": torch.zeros(2 * size)}
        for name, rows in (("words", 2 * size), ("others", 4 * size)):
            each[name] = 0.1 * torch.randn((rows, _WIDTH), generator=self._generator)
        alike = {"roles": torch.tensor(_ROLES).repeat(2, 1), "all": torch.tensor([-1.0])}
        self.weights = nn.ParameterDict(each | alike)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [self.weights[n] for n in each], "weight_decay": weight_decay},
                {"params": [self.weights[n] for n in alike], "weight_decay": 0.0, "lr": 5 * lr},
            ],
            lr=lr,
        )
        self._steps = torch.zeros((window, 4, size), dtype=torch.uint8)  # a ring
        self._pursued = torch.zeros(window, dtype=torch.int64)
        self._reached = torch.zeros(window, dtype=torch.bool)
        self._told = 0

    def read(self, before: Sequence[str], actions: Sequence[str], after: Sequence[str]) -> Tensor:
        """Counts the words of N steps: the observations, and the actions between them.

        Returns:
            ``uint8 [N, 4, V]``: of the action, of the observations before and after, and of the
            lines or sentences that only the second has.
        """
        counts = torch.zeros((len(before), 4, self._size), dtype=torch.uint8)
        for bags, seen, action, then in zip(counts, before, actions, after, strict=True):
            old, new = (re.split(r"[\n.!?]+", text) for text in (seen, then))
            texts = (action, seen, then, " ".join(line for line in new if line not in old))
            for bag, text in zip(bags, texts, strict=True):
                ids = torch.tensor([self._id(word) for word in _words(text)], dtype=torch.int64)
                bag += ids.bincount(minlength=self._size).clamp(max=255).byte()
        return counts

    def _id(self, word: str) -> int:
        return self._ids.get(word, self._size - 1 - zlib.crc32(word.encode()) % self._buckets)

    @torch.no_grad()
    def __call__(self, steps: Tensor) -> Tensor:
        """Log-odds that steps ``uint8 [N, 4, V]`` reached each of the goals, float ``[N, G]``."""
        evidence = self._evidence(steps).T.contiguous()
        return embedding_bag(self._goals, evidence, mode="sum").T + self.weights["all"]

    def _evidence(self, steps: Tensor) -> Tensor:
        """What each word adds, among the last of a goal, before them, and no word: [N, 2 V + 1]."""
        action, before, after, new = steps.float().unbind(1)
        change = after - before
        there = [action, change.clamp(0, 2), (-change).clamp(0, 2), new]
        roles = [*there, change.ne(0).float(), after.clamp(max=2), torch.ones_like(after)]
        alike = torch.einsum("rnv,zr->nzv", torch.stack(roles), self.weights["roles"]).flatten(1)
        others = torch.cat(there, 1) @ self.weights["others"]
        return pad(alike + others @ self.weights["words"].T + self.weights["alone"], (0, 1))

    def learn(self, steps: Tensor, goal_ids: Tensor, reached: Tensor) -> None:
        """Takes in steps, and makes four updates, each from 128 of the last steps.

        Args:
            steps: as :meth:`read` tells them, ``uint8 [N, 4, V]``.
            goal_ids: goals that they pursued, ``int64 [N]``; a ValueError refuses other ids.
            reached: whether they reached these, bool ``[N]``; ValueError for another number.
        """
        goal_ids = check_ids("goal_ids", goal_ids, 0, len(self._goals))
        if not len(steps) == len(goal_ids) == len(reached):
            raise ValueError(
                f"goal_ids ({len(goal_ids)}) and reached ({len(reached)}) must be as many as "
                f"steps: {len(steps)}"
            )
        window, draw = len(self._steps), {"generator": self._generator}
        slots = (self._told + torch.arange(len(steps))) % window
        rings = (self._steps, self._pursued, self._reached)
        for ring, values in zip(rings, (steps, goal_ids, reached), strict=True):
            ring[slots[-window:]] = values[-window:]
        self._told += len(steps)
        for _ in range(_UPDATES if self._told else 0):
            drawn = torch.randint(min(self._told, window), (_BATCH,), **draw)
            goal, reached = self._pursued[drawn], self._reached[drawn].float()
            other = torch.randint(len(self._goals) - 1, (_BATCH,), **draw)
            words = self._goals[torch.cat((goal, other + (other >= goal)))]
            evidence = self._evidence(self._steps[drawn]).repeat(2, 1)
            odds = evidence.gather(1, words).sum(1) + self.weights["all"]
            labels = torch.cat((reached, torch.zeros(_BATCH)))
            self.optimizer.zero_grad()
            binary_cross_entropy_with_logits(odds, labels).backward()
            self.optimizer.step()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
