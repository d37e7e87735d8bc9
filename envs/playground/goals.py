"""The goals of Playground-Text: their texts, kinds, splits, and which events reach them."""

from difflib import get_close_matches
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torchrl_glam.envs.playground.vocabulary import (
    CATEGORIES,
    COLOURS,
    FURNITURE,
    OBJECTS,
    PLANTS,
    SUPPLIES,
    TYPES,
    VERBS,
    feeds,
)

Split = Literal["train", "test"]
_COLOURS = (*COLOURS, "any")
_ITEMS = range(len(OBJECTS))


class SimpleGoal(NamedTuple):
    """A goal of one event: a verb, a colour or "any", and a type, a category or "thing"."""

    verb: str
    colour: str
    name: str

    def __str__(self) -> str:
        article = "any " if self.name == "thing" else ""  # "Grasp any red thing"
        return f"{self.verb} {article}{self.colour} {self.name}"

    def describes(self, object_id: int) -> bool:
        """Says whether an object fits the words after the verb."""
        colour, kind = OBJECTS[object_id].split()
        return self.colour in ("any", colour) and (
            self.name in ("thing", kind) or kind in CATEGORIES.get(self.name, ())
        )


HELD_OUT = (
    *("red tree", "green dog", "blue door", "flower"),
    *(f"Grasp {colour} {name}" for colour in _COLOURS for name in ("animal", "fly")),
    *(f"Grow {colour} {n}" for colour in _COLOURS for n in (*PLANTS, "plant", "living_thing")),
)
"""A simple goal whose text contains any of these is in the test split."""
_CANNOT_GROW = (*FURNITURE, *SUPPLIES, "furniture", "supply")


def simple_goals(split: Split, hopeless: bool = False) -> list[SimpleGoal]:
    """Lists the simple goals of a split: first those with ``Grasp``, then those with ``Grow``.

    ``hopeless`` adds those that nothing reaches, to grow furniture or a supply, at the end.
    """
    goals = []
    for verb in VERBS:
        names = [*TYPES, *CATEGORIES]
        if verb == "Grow":
            names = [name for name in names if name not in _CANNOT_GROW]
        goals += [SimpleGoal(verb, colour, name) for name in names for colour in _COLOURS]
        goals += [SimpleGoal(verb, colour, "thing") for colour in COLOURS]
    if hopeless:
        goals += [SimpleGoal("Grow", colour, name) for name in _CANNOT_GROW for colour in _COLOURS]
    held_out = split == "test"
    return [goal for goal in goals if any(part in str(goal) for part in HELD_OUT) == held_out]


class GoalSpace:
    """The goals of one split, numbered from 0: simple goals first, then sequential ones.

    A simple goal is ``Grasp <description>`` or ``Grow <description>``. A sequential goal is
    ``<Grow goal a> then <goal b>``, both of the same split and not ending in the same two words.
    The train split has 8,470 goals, 97.9 % of them sequential, as in SAC-GLAM (Gaven et al., 2024),
    section 4. The test split holds out words and combinations.

    Impossible goals, as in MAGELLAN (Gaven et al., 2025), are a further kind. Some ask, in one of
    their parts, to grow furniture or a supply (``Grow red lamp``). The others repeat every
    possible goal once, in a scene that lacks something the goal needs.

    Args:
        split: ``"train"`` or ``"test"``. Default: ``"train"``.
        sequential: whether there are sequential goals, which Appendix B of SAC-GLAM leaves out.
            Default: True.
        impossible: share of impossible goals in :meth:`draw`, in [0, 1]; where there are some, the
            possible ones have other ids. Default: 0, there are none.

    Attributes:
        kinds: grasp, grow, grow_then_grasp, grow_then_grow, and impossible if there are such goals.
        texts: the text of every goal.
        kind_ids: index in ``kinds`` of every goal, ``int8 [G]``.
        kind_shares: share of every kind among the goals, or in :meth:`draw`.
        first_lacking: id from which on the scenes of goals lack something, G if there are none.
        parts: the simple goals of every goal in order, ``int64 [G, 2]``; -1 if there is no second.
        reached_by: whether a verb (index in ``VERBS``) done to an object reaches a simple goal,
            ``bool [S, 2, 96]``.
        matches: objects that reach a simple goal, or, where nothing does, that fit its words,
            ``bool [S, 96]``.
        sequence_ids: id of ``a then b`` for simple goals ``a`` and ``b``, -1 if there is no such
            goal, ``int64 [S, S]``.

    Raises:
        ValueError: if ``split`` is unknown, or ``impossible`` out of range.

    Examples:
        >>> goals = GoalSpace("train")
        >>> len(goals), goals.num_simple
        (8470, 182)
        >>> goals[goals.id_of("Grow green mouse then grasp blue rose")]
        'Grow green mouse then grasp blue rose'
    """

    kinds = ("grasp", "grow", "grow_then_grasp", "grow_then_grow")

    def __init__(
        self, split: Split = "train", sequential: bool = True, impossible: float = 0.0
    ) -> None:
        if split not in ("train", "test"):
            raise ValueError(f"split must be 'train' or 'test', got {split!r}.")
        if not 0 <= impossible <= 1:
            raise ValueError(f"impossible must be a share in [0, 1], got {impossible}.")
        self.split, self.sequential, self.impossible = split, sequential, impossible
        simple = simple_goals(split, hopeless=impossible > 0)
        self.num_simple = len(simple)
        self.num_grasp = sum(goal.verb == "Grasp" for goal in simple)
        fits = torch.tensor([[goal.describes(item) for item in _ITEMS] for goal in simple])
        asked = torch.tensor([[goal.verb == verb for verb in VERBS] for goal in simple])
        possible = torch.stack((torch.ones(len(OBJECTS), dtype=torch.bool), FEEDS.any(0)))
        self.reached_by = fits.unsqueeze(1) & asked.unsqueeze(2) & possible
        reached = self.reached_by.any(1)
        self.matches = torch.where(reached.any(1, keepdim=True), reached, fits)
        texts = [str(goal) for goal in simple]
        parts = [(index, -1) for index in range(len(simple))]
        kinds = [VERBS.index(goal.verb) for goal in simple]
        if sequential:
            pairs = _sequences(simple, self.num_grasp)
            texts += [f"{texts[a]} then g{texts[b][1:]}" for a, b in pairs]
            kinds += [2 + VERBS.index(simple[b].verb) for _, b in pairs]
            parts += pairs
        self.first_lacking = len(texts)
        self.parts, self.kind_ids = torch.tensor(parts), torch.tensor(kinds, dtype=torch.int8)
        if impossible:
            texts += self._add_impossible(texts, reached.any(1))
        self.texts = tuple(texts)
        count = self.kind_ids.long().bincount(minlength=len(self.kinds))
        shares = count / len(texts)
        if impossible:
            shares = count.double() / count[:-1].sum() * (1 - impossible)
            shares[-1] = impossible
            self._sums = (shares / count.clamp(min=1))[self.kind_ids.long()].cumsum(0)
        self.kind_shares = tuple(shares.tolist())
        self.sequence_ids = torch.full((len(simple), len(simple)), -1)
        first, second = self.parts[self.num_simple : self.first_lacking].unbind(-1)
        self.sequence_ids[first, second] = torch.arange(self.num_simple, self.first_lacking)
        self._ids = {text: index for index, text in enumerate(texts[: self.first_lacking])}
        self._leads_to, self._implies = _relations(self.reached_by)

    def _add_impossible(self, texts: list[str], reachable: Tensor) -> list[str]:
        """Adds the kind, and every possible goal once more; returns the texts of these."""
        self.kinds = (*self.kinds, "impossible")
        first, second = self.parts.unbind(-1)
        possible = (reachable[first] & (reachable[second] | (second < 0))).nonzero().squeeze(1)
        kinds = torch.full((len(texts) + len(possible),), len(self.kinds) - 1, dtype=torch.int8)
        self.kind_ids = kinds.index_copy(0, possible, self.kind_ids[possible])
        self.parts = torch.cat((self.parts, self.parts[possible]))
        return [texts[goal] for goal in possible.tolist()]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, goal_id: int) -> str:
        """Returns the text of a goal."""
        if not 0 <= goal_id < len(self):
            raise IndexError(f"goal_id must be in [0, {len(self)}), got {goal_id}.")
        return self.texts[goal_id]

    def __repr__(self) -> str:
        return f"GoalSpace(split={self.split!r}, sequential={self.sequential}, goals={len(self)})"

    def draw(self, generator: torch.Generator, count: int) -> Tensor:
        """Draws goals uniformly, impossible ones in their share: ids, ``int64 [count]``."""
        device = generator.device
        if not self.impossible:
            return torch.randint(len(self), (count,), generator=generator, device=device)
        sums = self._sums.to(device)  # of the goals' weights
        draw = torch.rand(count, generator=generator, device=device, dtype=torch.float64)
        return torch.searchsorted(sums, draw * sums[-1], right=True)

    def id_of(self, text: str) -> int:
        """Returns the id of a goal; not of one whose scene lacks something.

        Where there is no such goal, a ValueError names the nearest one.
        """
        if text not in self._ids:
            close = get_close_matches(text, self.texts, n=1)
            raise ValueError(
                f"There is no goal {text!r} in the {self.split} split"
                f"{'' if self.sequential else ' without sequential goals'}."
                + (f" The nearest is {close[0]!r}." if close else "")
            )
        return self._ids[text]

    def texts_of(self, goal_ids: torch.Tensor) -> str | list:
        """Texts of goal ids ``[*B]``, -1 for none (``""``), as nested lists of strings."""

        def texts(ids: int | list) -> str | list:
            if isinstance(ids, list):
                return [texts(part) for part in ids]
            return "" if ids == -1 else self[ids]

        return texts(goal_ids.tolist())

    def is_subgoal(self, a: Tensor, b: Tensor) -> Tensor:
        """Says whether goals ``a`` are sub-goals of ``b``, bool: reaching them is a step of a plan.

        The *steps* of a ``Grasp`` goal are the grasps that reach it; those of a ``Grow`` goal are
        the growths that reach it, the grasps of what is to grow, and the grasps of what feeds it.

        - A simple goal is a sub-goal of a simple goal if every event that reaches the first is a
          step of the second: ``Grasp red lion`` and ``Grasp any food`` of ``Grow any lion``, but
          not ``Grasp any red thing``.
        - A simple goal is a sub-goal of ``b1 then b2`` if it is one of ``b1`` or of ``b2``.
        - ``a1 then a2`` is a sub-goal of ``b1 then b2`` if every event that reaches ``a1`` reaches
          ``b1``, and ``a2`` is a sub-goal of ``b2``; of a simple goal it is none.

        SAC-GLAM (Gaven et al., 2024) relies on the relation in Appendix G ("aligned" hindsight
        goals) without defining it; the definition is ours.

        Args:
            a, b: goal ids, of shapes that broadcast; others raise IndexError.

        Examples:
            >>> goals = GoalSpace("train")
            >>> texts = ("Grasp red lion", "Grasp blue lion", "Grasp any food", "Grow red lion")
            >>> named = torch.tensor([goals.id_of(text) for text in texts])
            >>> goals.is_subgoal(named, torch.tensor(goals.id_of("Grow red lion")))
            tensor([ True, False,  True,  True])
        """
        for ids in (a, b):
            if ids.numel() and not 0 <= ids.min() <= ids.max() < len(self):
                raise IndexError(
                    f"goal ids must be in [0, {len(self)}), got {int(ids.min())} to "
                    f"{int(ids.max())}."
                )
        tables = (self.parts, self._leads_to, self._implies)
        parts, leads_to, implies = (table.to(a.device) for table in tables)
        a, b = torch.broadcast_tensors(a.long(), b.long())
        (first_a, second_a), (first_b, second_b) = parts[a].unbind(-1), parts[b].unbind(-1)
        # A missing second part, -1, picks a row or column that is masked out afterwards.
        simple_a, simple_b = second_a < 0, second_b < 0
        of_part = leads_to[first_a, first_b] | (leads_to[first_a, second_b] & ~simple_b)
        in_order = implies[first_a, first_b] & leads_to[second_a, second_b] & ~simple_b
        return torch.where(simple_a, of_part, in_order)


FEEDS = torch.tensor([[feeds(supply, living) for living in _ITEMS] for supply in _ITEMS])
"""Which object makes which other grow, ``bool [96, 96]``."""


def _relations(reached_by: Tensor) -> tuple[Tensor, Tensor]:
    """Relations between simple goals, bool ``[S, S]``, from ``reached_by``, ``[S, 2, 96]``.

    Whether every event that reaches the row's goal is a step of the column's, and reaches it.
    """
    grows = reached_by[:, VERBS.index("Grow")]
    grasps = reached_by[:, VERBS.index("Grasp")] | grows | (grows.float() @ FEEDS.T.float() > 0)
    steps = torch.stack((grasps, grows), 1)  # in the order of VERBS
    events, outside = reached_by.flatten(1).float(), (~steps).flatten(1).float()
    missed = (~reached_by).flatten(1).float()
    return events @ outside.T == 0, events @ missed.T == 0


def _sequences(simple: list[SimpleGoal], num_grasp: int) -> list[tuple[int, int]]:
    """Lists the pairs that make a sequential goal, those that end in ``grasp`` first."""
    endings = [str(goal).split()[-2:] for goal in simple]
    grows, goals = range(num_grasp, len(simple)), range(len(simple))
    pairs = [(a, b) for a in grows for b in goals if endings[a] != endings[b]]
    return sorted(pairs, key=lambda pair: pair[1] >= num_grasp)
