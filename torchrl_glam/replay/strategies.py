"""Goal strategies: which of the goals named in an episode its steps are relabelled with.

Those of Hindsight Experience Replay (Andrychowicz et al., 2017, section 4.5), for goals that a
social partner names instead of goals read off states. To add one, write a function like
:func:`future` and enter it in :data:`STRATEGIES`, or pass the function itself to
:class:`~torchrl_glam.replay.HindsightTransform`.

Notation: E finished episodes, whose steps stand in one line; S goals named, C copies.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch


class Spans(NamedTuple):
    """Runs of neighbours in a line, one per entry; every field is int64 [E]."""

    first: torch.Tensor
    last: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        """Number of places in each span, [E]."""
        return self.last - self.first + 1

    def places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The span and place of every place of every span, int64 [sum of lengths]."""
        lengths = self.lengths
        span = torch.repeat_interleave(lengths)
        offset = self.first - (lengths.cumsum(0) - lengths)
        return span, torch.arange(span.shape[0], device=span.device) + offset[span]


class NamedGoals(NamedTuple):
    """Goals reached in finished episodes, without those pursued; every field is int64 [S].

    Args:
        episode: episode of each.
        place: place of the step that reaches it in the line of all episodes' steps.
        goal: number of the goal: equal for equal goals of one episode.
        before: place of the last earlier step of the episode that reaches it, or of the last step
            before the episode.
        source: index of the entry that names it.
    """

    episode: torch.Tensor
    place: torch.Tensor
    goal: torch.Tensor
    before: torch.Tensor
    source: torch.Tensor


class Copies(NamedTuple):
    """Runs of steps to repeat, each under the goal that its last step reaches first; each [C].

    Args:
        first, last: places of the first and last step of each, int64.
        goal: index of its goal in :class:`NamedGoals`, int64.
    """

    first: torch.Tensor
    last: torch.Tensor
    goal: torch.Tensor

    def where(self, chosen: torch.Tensor) -> "Copies":
        """The copies that are chosen, bool [C]."""
        return Copies(*(field[chosen] for field in self))


Strategy = Callable[[NamedGoals, Spans], Copies]


def future(named: NamedGoals, episodes: Spans) -> Copies:
    """Every step with the goals named after it or after a later one (the paper's choice).

    If step s reached the same goal before, the copy begins at s + 1: at s, a reward of 0 is false.

    Args:
        named: goals reached, S of them.
        episodes: places of the episodes' steps, E spans.

    Examples:
        >>> episodes, one = Spans(torch.tensor([4]), torch.tensor([9])), torch.tensor([0])
        >>> named = named_goals(episodes, one, one + 6, one[None])  # after the step at place 6
        >>> copies = future(named, episodes)
        >>> copies.first, copies.last
        (tensor([4]), tensor([6]))
    """
    goal = torch.arange(named.place.shape[0], device=named.place.device)
    return Copies(named.before + 1, named.place, goal)


def final(named: NamedGoals, episodes: Spans) -> Copies:
    """Every step with the goals reached at the end: those that were named last.

    A partner does not name a goal after every step. Later steps are not repeated.
    """
    latest = named.place.new_full(episodes.first.shape, -1)
    latest = latest.scatter_reduce(0, named.episode, named.place, "amax")
    at_the_end = named.goal[named.place == latest[named.episode]]
    return future(named, episodes).where(torch.isin(named.goal, at_the_end))


STRATEGIES: dict[str, Strategy] = {"future": future, "final": final}


def named_goals(
    episodes: Spans, episode: torch.Tensor, place: torch.Tensor, goals: torch.Tensor
) -> NamedGoals:
    """Numbers the goals named in episodes, any type, [S', ...]: equal ones alike.

    ``episode`` and ``place``, int64 [S'], say where each was named, in ascending order. Returns one
    entry a step and goal; of a goal in two slots of one step, the first.
    """
    if goals.is_complex():
        goals = torch.view_as_real(goals)
    wide = torch.float64 if goals.is_floating_point() else torch.int64  # each holds all of its kind
    goals = goals.reshape(goals.shape[0], goals.shape[1:].numel())
    rows = torch.cat([episode.unsqueeze(1).to(wide), goals.to(wide)], 1)
    different, goal = rows.unique(dim=0, return_inverse=True)
    source = torch.arange(goal.shape[0], device=goal.device)
    before = episodes.first[episode] - 1
    if different.shape[0] == goal.shape[0]:
        return NamedGoals(episode, place, goal, before, source)
    order = goal.argsort(stable=True)  # by goal, then by place, then by slot
    first = torch.ones_like(goal, dtype=torch.bool)
    first[1:] = (goal[order].diff() != 0) | (place[order].diff() != 0)
    order = order[first]
    same = goal[order[1:]] == goal[order[:-1]]
    before[order[1:][same]] = place[order[:-1][same]]
    kept = order.sort().values
    return NamedGoals(*(field[kept] for field in (episode, place, goal, before, source)))


def draw_from_each(groups: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws ``count`` members of every group at random, without replacement; all if it has fewer.

    ``groups``, integers [M], is the group of each; the result says which were drawn, bool [M].
    """
    shuffled = torch.randperm(groups.shape[0], generator=generator, device=generator.device)
    shuffled = shuffled.to(groups.device)
    order = shuffled[groups[shuffled].argsort(stable=True)]
    _, sizes = groups[order].unique_consecutive(return_counts=True)
    begin = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    drawn = torch.zeros_like(groups, dtype=torch.bool)
    drawn[order] = torch.arange(groups.shape[0], device=groups.device) - begin < count
    return drawn
