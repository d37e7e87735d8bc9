"""Which of the goals named in an episode its steps are relabelled with.

Notation: E finished episodes, whose steps stand in one line; S goals reached in them, each by one
step. :mod:`torchrl_glam.replay` says what the strategies are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_glam.replay._checks import REWARD_SLACK
from torchrl_glam.replay._episodes import Spans


class Namings(NamedTuple):
    """Goals reached in finished episodes, each at one step and once; every field is [S].

    Args:
        episode: Episode of each, int64.
        place: Place of the step that reaches it in the line of all episodes' steps, int64.
        goal: Number of the goal, int64: the same for the same goal in the same episode.
        before: Place of the last earlier step of the episode that reaches it, or of the last step
            before the episode, int64.
        again: Whether a later step of the episode reaches it, bool.
        source: Which of the goals named it is, int64.
    """

    episode: torch.Tensor
    place: torch.Tensor
    goal: torch.Tensor
    before: torch.Tensor
    again: torch.Tensor
    source: torch.Tensor

    def where(self, chosen: torch.Tensor) -> Namings:
        """Some of them."""
        return Namings(*(field[chosen] for field in self))


def namings(
    episodes: Spans, episode: torch.Tensor, place: torch.Tensor, goals: torch.Tensor
) -> Namings:
    """Finds out which of the goals named in episodes are the same.

    Args:
        episodes: Where the episodes' steps stand in a line, E spans.
        episode: Episode in which each goal was named, int64 [S'].
        place: Place of the step after which it was named, int64 [S'], ascending.
        goals: The goals themselves, any type, [S', ...]; they are compared exactly.

    Returns:
        One entry per step and goal; of a goal in two slots of one step, the first.

    Examples:
        >>> episodes = Spans(torch.tensor([0, 3]), torch.tensor([2, 5]))
        >>> goals = torch.tensor([[0.25], [0.5], [0.25], [0.25], [0.25]])
        >>> found = namings(
        ...     episodes, torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0, 1, 2, 2, 3]), goals
        ... )
        >>> found.place, found.before, found.again
        (tensor([0, 1, 2, 3]), tensor([-1, -1,  0,  2]), tensor([ True, False, False, False]))
    """
    if not episode.numel():
        return Namings(episode, place, episode, place, episode.bool(), episode)
    content = in_episode(episode, goals)
    different, goal = torch.unique(content, dim=0, return_inverse=True)
    source = torch.arange(goal.shape[0], device=goal.device)
    before, again = episodes.first[episode] - 1, torch.zeros_like(goal, dtype=torch.bool)
    if different.shape[0] == goal.shape[0]:
        return Namings(episode, place, goal, before, again, source)
    order = goal.argsort(stable=True)  # by goal, then by place, then by slot
    same = goal[order[1:]] == goal[order[:-1]]
    repeated = same & (place[order[1:]] == place[order[:-1]])
    if repeated.any():
        first = torch.ones_like(goal, dtype=torch.bool)
        first[order[1:][repeated]] = False
        kept = first.nonzero().squeeze(1)
        found = namings(episodes, episode[kept], place[kept], goals[kept])
        return found._replace(source=kept)
    before[order[1:][same]] = place[order[:-1][same]]
    again[order[:-1][same]] = True
    return Namings(episode, place, goal, before, again, source)


def in_episode(episode: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    """Goals [S, ...] with their episodes [S] as rows [S, C], alike where both are, exactly."""
    if goals.is_complex():
        goals = torch.view_as_real(goals)
    wide = torch.float64 if goals.is_floating_point() else torch.int64  # each holds all of its kind
    goals = goals.reshape(goals.shape[0], goals.shape[1:].numel()).to(wide)
    return torch.cat([episode.unsqueeze(1).to(wide), goals], 1)


def choose(
    found: Namings,
    num_episodes: int,
    strategy: str,
    goals_per_episode: int | None,
    generator: torch.Generator,
) -> Namings:
    """Chooses the goals that episodes are relabelled with, each with all the steps that reach it.

    Args:
        found: The goals reached.
        num_episodes: Number of episodes E.
        strategy: ``"final"`` chooses those that the last step that reaches any reaches; others
            all.
        goals_per_episode: How many goals of an episode to draw of these; None for all.
        generator: Source of randomness.

    Examples:
        >>> episodes, at = Spans(torch.tensor([0]), torch.tensor([5])), torch.tensor([0, 1, 1, 4])
        >>> found = namings(episodes, at * 0, at, torch.tensor([[7], [7], [8], [7]]))
        >>> choose(found, 1, "final", None, torch.Generator()).source
        tensor([0, 1, 3])
    """
    if not found.goal.numel() or (strategy != "final" and goals_per_episode is None):
        return found
    count = int(found.goal.max()) + 1
    episode = found.goal.new_zeros(count)
    episode[found.goal] = found.episode
    chosen = torch.ones_like(episode, dtype=torch.bool)
    if strategy == "final":
        latest = found.place.new_full((num_episodes,), -1)
        latest = latest.scatter_reduce(0, found.episode, found.place, "amax")
        chosen[:] = False
        chosen[found.goal[found.place == latest[found.episode]]] = True
    if goals_per_episode is not None:
        candidates = chosen.nonzero().squeeze(1)
        chosen[candidates] = draw_from_each(episode[candidates], goals_per_episode, generator)
    return found.where(chosen[found.goal])


def relabelled_spans(
    found: Namings, episodes: Spans, unreached: bool
) -> tuple[Spans, torch.Tensor, int]:
    """Finds the steps to repeat under each goal: up to the one that reaches it.

    They begin with the episode, or after the step that reached the same goal before: under this
    goal an episode ends there.

    Args:
        found: The goals reached, S of them.
        episodes: Where the episodes' steps stand in a line, E spans.
        unreached: Add the steps after the last one that reaches a goal.

    Returns:
        The spans to repeat; for each of them the index of its goal in ``found``, int64; and how
        many of them, the first ones, reach it with their last step.

    Examples:
        >>> episodes, one = Spans(torch.tensor([4]), torch.tensor([9])), torch.tensor([0])
        >>> found = namings(episodes, one, one + 6, one[None])
        >>> spans, goal, num_reached = relabelled_spans(found, episodes, unreached=True)
        >>> spans.first, spans.last, goal, num_reached
        (tensor([4, 7]), tensor([6, 9]), tensor([0, 0]), 1)
    """
    spans = Spans(found.before + 1, found.place)
    goal = torch.arange(found.place.shape[0], device=found.place.device)
    if not unreached:
        return spans, goal, goal.shape[0]
    last = episodes.last[found.episode]
    rest = goal[~found.again & (found.place < last)]
    spans = Spans(
        torch.cat([spans.first, found.place[rest] + 1]), torch.cat([spans.last, last[rest]])
    )
    return spans, torch.cat([goal, rest]), goal.shape[0]


def write_ends(
    rows: TensorDictBase,
    begin: int,
    ends: torch.Tensor,
    num_reached: int,
    scale: tuple[float, float],
    reward_key: NestedKey,
    done_key: NestedKey,
    terminated_key: NestedKey,
    truncated_key: NestedKey,
) -> None:
    """Writes rewards and ends of the steps that were repeated under other goals.

    Args:
        rows: Rows [M], changed in place.
        begin: First row of a repeated step; all that follow are.
        ends: Last row of each span, int64 [S].
        num_reached: How many of them, the first ones, reach the span's goal. The others are
            terminated if the episode failed there, else truncated.
        scale: Reward of a step that does not reach its goal, and of one that does.
        reward_key, done_key, terminated_key, truncated_key: Entries to write, [M, 1]; the last
            need not exist.

    Examples:
        >>> from tensordict import TensorDict
        >>> end = torch.tensor([[False], [True], [False], [True]])
        >>> rows = TensorDict({"reward": end.float(), "done": end, "terminated": end.clone()}, [4])
        >>> write_ends(
        ...     rows, 2, torch.tensor([2]), 1, (0.0, 1.0),
        ...     "reward", "done", "terminated", "truncated",
        ... )
        >>> rows["reward"].flatten(), rows["terminated"].flatten()
        (tensor([0., 1., 1., 0.]), tensor([False,  True,  True, False]))
    """
    reached, rest = ends[:num_reached], ends[num_reached:]
    reward, terminated = rows.get(reward_key), rows.get(terminated_key)
    # the end of an episode that reached its own goal is no end under another goal
    failed = terminated[rest] & without_success(reward[rest], scale).view_as(terminated[rest])
    reward[begin:] = scale[0]
    reward[reached] = scale[1]
    for key, where, value in (
        (done_key, ends, True),
        (terminated_key, reached, True),
        (truncated_key, rest, ~failed),
    ):
        entry = rows.get(key, None)
        if entry is not None:
            entry[begin:] = False
            entry[where] = value
    if rest.numel():
        terminated[rest] = failed


def without_success(reward: torch.Tensor, scale: tuple[float, float]) -> torch.Tensor:
    """Whether rewards [k, 1] are no more than those of a step that reaches nothing, bool [k].

    Examples:
        >>> without_success(torch.tensor([[-1.0], [0.0]]), scale=(-1.0, 0.0))
        tensor([ True, False])
    """
    unreached, reached = scale
    return reward.reshape(-1) <= unreached + REWARD_SLACK * (reached - unreached)


def draw_from_each(groups: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws members of every group at random, without replacement.

    Args:
        groups: Group of each member, integers [M], in any order.
        count: Members to draw of a group; all of them where it has no more than that.
        generator: Source of randomness.

    Returns:
        Whether each member was drawn, bool [M].

    Examples:
        >>> drawn = draw_from_each(torch.tensor([4, 9, 4, 4]), 2, torch.Generator())
        >>> drawn[[0, 2, 3]].sum(), drawn[1]
        (tensor(2), tensor(True))
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
