"""Which of the goals named in an episode its steps are relabelled with.

Notation: S goals named in finished episodes, each after one step of one episode. The strategies
are those of Hindsight Experience Replay (Andrychowicz et al., 2017, section 4.5), with goals that
a partner names instead of goals read off states.
"""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_glam.replay.episodes import Spans


def named_last(episode: torch.Tensor, time: torch.Tensor, num_episodes: int) -> torch.Tensor:
    """Finds the goals that are the last ones named in their episode.

    Args:
        episode: Episode in which each goal was named, int64 [S].
        time: Time of the step after which it was named, int64 [S].
        num_episodes: Number of episodes E; ``episode`` is below it.

    Returns:
        Whether no goal was named later in the same episode, bool [S].

    Examples:
        >>> named_last(torch.tensor([0, 0, 1, 1]), torch.tensor([2, 5, 9, 9]), num_episodes=2)
        tensor([False,  True,  True,  True])
    """
    latest = time.new_zeros(num_episodes).scatter_reduce(
        0, episode, time, "amax", include_self=False
    )
    return time == latest[episode]


def other_times_named(
    episode: torch.Tensor, time: torch.Tensor, goals: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds when goals were named before, and whether they are named again, in their episode.

    Args:
        episode: Episode in which each goal was named, int64 [S].
        time: Time of the step after which it was named, int64 [S].
        goals: The goals' tokens, integers [S, Tg].

    Returns:
        The last earlier time at which the same goal was named in the episode, -1 if it was not,
        int64 [S]; and whether it is named again at a later time, bool [S].

    Examples:
        >>> goals = torch.tensor([[7, 1], [7, 2], [7, 1], [7, 1]])
        >>> other_times_named(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 3]), goals)
        (tensor([-1, -1,  0, -1]), tensor([ True, False, False, False]))
    """
    if not episode.numel():
        return time, episode.bool()
    content = torch.cat([episode.unsqueeze(-1), goals.to(torch.int64), time.unsqueeze(-1)], -1)
    namings, which = torch.unique(content, dim=0, return_inverse=True)  # sorted, by time at last
    same = (namings[1:, :-1] == namings[:-1, :-1]).all(-1)
    before = torch.full_like(namings[:, -1], -1)
    before[1:] = torch.where(same, namings[:-1, -1], -1)
    again = torch.zeros_like(before, dtype=torch.bool)
    again[:-1] = same
    return before[which], again[which]


def relabelled_spans(
    episodes: Spans,
    episode: torch.Tensor,
    time: torch.Tensor,
    goals: torch.Tensor,
    unreached: bool,
) -> tuple[Spans, torch.Tensor, torch.Tensor]:
    """Finds the steps to repeat under each goal: up to the one after which it was named.

    They begin with the episode, or after the step at which the same goal was named before: that
    step reaches it too, so under this goal an episode ends there.

    Args:
        episodes: Finished episodes, E spans.
        episode: Episode in which each goal was named, int64 [S].
        time: Time of the step after which it was named, int64 [S].
        goals: The goals' tokens, integers [S, Tg].
        unreached: Add the steps after the one at which a goal is named for the last time.

    Returns:
        The spans to repeat; for each of them the index of its goal, int64, and whether its last
        step reaches the goal, bool.

    Examples:
        >>> one = torch.tensor([0])
        >>> episodes = Spans(env=one, first=one + 4, last=one + 9)
        >>> spans, goal, reached = relabelled_spans(episodes, one, one + 6, one[None], True)
        >>> spans.first, spans.last, goal, reached
        (tensor([4, 7]), tensor([6, 9]), tensor([0, 0]), tensor([ True, False]))
    """
    env, first, last = (field[episode] for field in episodes)
    before, again = other_times_named(episode, time, goals)
    first = torch.where(before >= 0, before + 1, first)
    goal = torch.arange(episode.shape[0], device=episode.device)
    if not unreached:
        return Spans(env, first, time), goal, torch.ones_like(goal, dtype=torch.bool)
    rest = goal[~again & (time < last)]
    spans = Spans(
        torch.cat([env, env[rest]]),
        torch.cat([first, time[rest] + 1]),
        torch.cat([time, last[rest]]),
    )
    both = torch.cat([goal, rest])
    return spans, both, torch.arange(both.shape[0], device=both.device) < goal.shape[0]


def write_ends(
    rows: TensorDictBase,
    begin: int,
    ends: torch.Tensor,
    reached: torch.Tensor,
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
        reached: Whether it reaches the span's goal, bool [S]. Where it does not, it is terminated
            if the episode failed there, else truncated.
        reward_key, done_key, terminated_key, truncated_key: Entries to write, [M, 1]; the last
            need not exist.

    Examples:
        >>> from tensordict import TensorDict
        >>> end = torch.tensor([[False], [True], [False], [True]])
        >>> rows = TensorDict({"reward": end.float(), "done": end, "terminated": end.clone()}, [4])
        >>> write_ends(
        ...     rows, 2, torch.tensor([2]), torch.tensor([True]),
        ...     "reward", "done", "terminated", "truncated",
        ... )
        >>> rows["reward"].flatten(), rows["terminated"].flatten()
        (tensor([0., 1., 1., 0.]), tensor([False,  True,  True, False]))
    """
    # the end of an episode that reached its own goal is no end under another goal
    failed = rows.get(reward_key)[ends].reshape(-1) <= 0
    failed &= rows.get(terminated_key)[ends].reshape(-1)
    for key, at_end in (
        (reward_key, reached),
        (done_key, torch.ones_like(reached)),
        (terminated_key, reached | failed),
        (truncated_key, ~(reached | failed)),
    ):
        entry = rows.get(key, None)
        if entry is not None:
            entry[begin:] = 0
            entry[ends] = at_end.to(entry.dtype).view(-1, *[1] * (entry.ndim - 1))


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
