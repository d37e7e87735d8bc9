"""Goal strategies: which of the goals named in an episode its steps are relabelled with.

Those of Hindsight Experience Replay (Andrychowicz et al., 2017, section 4.5), for goals that a
social partner names instead of goals read off states. To add one, write a function like
:func:`future` and enter it in :data:`STRATEGIES`, or hand the function itself to
:class:`~torchrl_glam.replay.HindsightTransform`.

The goal that an episode pursues is no hindsight, even where it is named.

Notation: E finished episodes, whose steps stand in one line; S goals named, C copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Spans(NamedTuple):
    """Runs of neighbours in a line, one per entry; every field has shape [E], int64."""

    first: torch.Tensor
    last: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        """Number of places in each span, [E]."""
        return self.last - self.first + 1

    def places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Every place of every span with its span's index, both int64 [sum of lengths].

        Examples:
            >>> spans = Spans(torch.tensor([5, 0]), torch.tensor([7, 0]))
            >>> spans.places()  # index, place
            (tensor([0, 0, 0, 1]), tensor([5, 6, 7, 0]))
        """
        lengths = self.lengths
        span = torch.repeat_interleave(lengths)
        offset = self.first - (lengths.cumsum(0) - lengths)
        return span, torch.arange(span.shape[0], device=span.device) + offset[span]


class NamedGoals(NamedTuple):
    """Goals reached in finished episodes, each by one step and once; every field is [S].

    Args:
        episode: episode of each, int64.
        place: place of the step that reaches it in the line of all episodes' steps, int64.
        goal: number of the goal, int64: equal for equal goals of one episode.
        before: place of the last earlier step of the episode that reaches it, or of the last step
            before the episode, int64.
        again: whether a later step of the episode reaches it, bool.
        source: index of the entry that names it, int64.
    """

    episode: torch.Tensor
    place: torch.Tensor
    goal: torch.Tensor
    before: torch.Tensor
    again: torch.Tensor
    source: torch.Tensor


class Copies(NamedTuple):
    """Runs of steps to repeat, each under one goal; every field is [C].

    Args:
        first, last: places of the first and last step of each, int64.
        goal: index of its goal in :class:`NamedGoals`, int64.
        reaches: whether the last step reaches the goal, bool. No earlier one does.
    """

    first: torch.Tensor
    last: torch.Tensor
    goal: torch.Tensor
    reaches: torch.Tensor

    def where(self, chosen: torch.Tensor) -> Copies:
        """The copies that are chosen, bool [C]."""
        return Copies(*(field[chosen] for field in self))


Strategy = Callable[[NamedGoals, Spans], Copies]


def future(named: NamedGoals, episodes: Spans) -> Copies:
    """Every step with the goals named after it or after a later one (the paper's choice).

    If the same goal was named before, after step s, the copy begins at s + 1: step s reached it, so
    a reward of 0 would be false there.

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
    return Copies(named.before + 1, named.place, goal, torch.ones_like(goal, dtype=torch.bool))


def final(named: NamedGoals, episodes: Spans) -> Copies:
    """Every step with the goals reached at the end.

    A partner does not name a goal after every step, so the end is the last step after which it
    named any but the pursued one. Later steps are not repeated.
    """
    latest = named.place.new_full(episodes.first.shape, -1)
    latest = latest.scatter_reduce(0, named.episode, named.place, "amax")
    at_the_end = named.goal[named.place == latest[named.episode]]
    return future(named, episodes).where(torch.isin(named.goal, at_the_end))


def episode(named: NamedGoals, episodes: Spans) -> Copies:
    """As :func:`future`, and the steps after the last one that reaches a goal, as a failure.

    They end like the episode if it failed, else as truncated. Needs a partner that names a goal
    after every step that reaches it.
    """
    reached, last = future(named, episodes), episodes.last[named.episode]
    rest = (~named.again & (named.place < last)).nonzero().squeeze(1)
    missed = Copies(named.place[rest] + 1, last[rest], rest, torch.zeros_like(rest).bool())
    return Copies(*(torch.cat(fields) for fields in zip(reached, missed, strict=True)))


STRATEGIES: dict[str, Strategy] = {"future": future, "final": final, "episode": episode}


def named_goals(
    episodes: Spans, episode: torch.Tensor, place: torch.Tensor, goals: torch.Tensor
) -> NamedGoals:
    """Finds out which of the goals named in episodes are equal.

    Args:
        episodes: places of the episodes' steps, E spans.
        episode: episode in which each goal was named, int64 [S'].
        place: place of the step after which it was named, int64 [S'], ascending.
        goals: the goals, any type, [S', ...]; compared exactly.

    Returns:
        One entry a step and goal; of a goal in two slots of one step, the first.

    Examples:
        >>> episodes = Spans(torch.tensor([0, 3]), torch.tensor([2, 5]))
        >>> goals = torch.tensor([[0.25], [0.5], [0.25], [0.25], [0.25]])
        >>> found = named_goals(
        ...     episodes, torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0, 1, 2, 2, 3]), goals
        ... )
        >>> found.place, found.before, found.again
        (tensor([0, 1, 2, 3]), tensor([-1, -1,  0,  2]), tensor([ True, False, False, False]))
    """
    if not episode.numel():
        return NamedGoals(episode, place, episode, place, episode.bool(), episode)
    different, goal = torch.unique(_in_episode(episode, goals), dim=0, return_inverse=True)
    source = torch.arange(goal.shape[0], device=goal.device)
    before, again = episodes.first[episode] - 1, torch.zeros_like(goal, dtype=torch.bool)
    if different.shape[0] == goal.shape[0]:
        return NamedGoals(episode, place, goal, before, again, source)
    order = goal.argsort(stable=True)  # by goal, then by place, then by slot
    same = goal[order[1:]] == goal[order[:-1]]
    repeated = same & (place[order[1:]] == place[order[:-1]])
    if repeated.any():
        first = torch.ones_like(goal, dtype=torch.bool)
        first[order[1:][repeated]] = False
        kept = first.nonzero().squeeze(1)
        found = named_goals(episodes, episode[kept], place[kept], goals[kept])
        return found._replace(source=kept)
    before[order[1:][same]] = place[order[:-1][same]]
    again[order[:-1][same]] = True
    return NamedGoals(episode, place, goal, before, again, source)


def _in_episode(episode: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    """Goals [S, ...] with their episodes [S] as rows [S, C], equal where both are, exactly."""
    if goals.is_complex():
        goals = torch.view_as_real(goals)
    wide = torch.float64 if goals.is_floating_point() else torch.int64  # each holds all of its kind
    goals = goals.reshape(goals.shape[0], goals.shape[1:].numel()).to(wide)
    return torch.cat([episode.unsqueeze(1).to(wide), goals], 1)


def draw_goals(copies: Copies, named: NamedGoals, count: int, generator: torch.Generator) -> Copies:
    """Copies under ``count`` goals of every episode, drawn at random; all where it has no more."""
    goal = named.goal[copies.goal]
    different = goal.unique()
    episode = torch.zeros_like(named.goal)  # there are no more numbers than goals
    episode[named.goal] = named.episode
    drawn = different[draw_from_each(episode[different], count, generator)]
    return copies.where(torch.isin(goal, drawn))


def draw_from_each(groups: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws ``count`` members of every group at random, without replacement.

    Args:
        groups: group of each member, integers [M], in any order.
        count: members to draw of a group; all of them where it has no more than that.
        generator: source of randomness.

    Returns:
        Whether each member was drawn, bool [M].
    """
    if not groups.numel():
        return groups.bool()
    shuffled = torch.randperm(groups.shape[0], generator=generator, device=generator.device)
    shuffled = shuffled.to(groups.device)
    order = shuffled[groups[shuffled].argsort(stable=True)]
    _, sizes = groups[order].unique_consecutive(return_counts=True)
    begin = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    drawn = torch.zeros_like(groups, dtype=torch.bool)
    drawn[order] = torch.arange(groups.shape[0], device=groups.device) - begin < count
    return drawn
