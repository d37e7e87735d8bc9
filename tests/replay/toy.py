"""Random episodes, and the buffer's content computed from them one step at a time.

The reference knows nothing of tensors: it takes each environment's list of steps, cuts it into
episodes, repeats them under each goal named, and looks n steps ahead, with plain loops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from tensordict import TensorDict

WIDTH, SLOTS = 2, 3  # tokens of a goal; goals that can be named after one step


@dataclass(frozen=True)
class Step:
    """One transition; observations are unique integers, goals pairs of tokens."""

    observation: int
    next_observation: int
    goal: tuple[int, int]
    kind: int
    reward: float
    done: bool
    terminated: bool
    truncated: bool
    named: tuple[tuple[tuple[int, int], int], ...]  # (goal, kind) of each goal named
    count: int


@dataclass(frozen=True)
class Row:
    """One transition in the replay buffer."""

    observation: int
    next_observation: int
    goal: tuple[int, int]
    next_goal: tuple[int, int]
    kind: int
    reward: float
    done: bool
    terminated: bool
    truncated: bool
    steps: int
    hindsight: bool


def make_stream(lengths, outcomes, named, first_observation):
    """Steps of one environment: episodes of the given lengths, outcomes and named goals.

    Args:
        lengths: Steps of each episode; the last one may stay unfinished, see ``outcomes``.
        outcomes: "success", "failure" (terminal without reward), "timeout" or "running", each.
        named: Per step (over all episodes) the goals named, as (token, kind) pairs.
        first_observation: Where to start numbering observations.
    """
    steps, named = [], iter(named)
    observation = first_observation
    for episode, (length, outcome) in enumerate(zip(lengths, outcomes, strict=True)):
        for t in range(length):
            last = t == length - 1 and outcome != "running"
            steps.append(
                Step(
                    observation=observation,
                    next_observation=observation + 1,
                    goal=(100 + episode, 0),
                    kind=episode % 4,
                    reward=float(last and outcome == "success"),
                    done=last,
                    terminated=last and outcome in ("success", "failure"),
                    truncated=last and outcome == "timeout",
                    named=tuple(((1, token), kind) for token, kind in next(named)),
                    count=t,
                )
            )
            observation += 1
        observation += 1  # the next episode starts from another observation: automatic reset
    return steps


def to_batch(columns):
    """Collector batch [N, T] from N lists of T steps each."""

    def tensor(field, dtype=None):
        return torch.tensor([[field(step) for step in line] for line in columns], dtype=dtype)

    def pad(step):
        return [goal for goal, _ in step.named] + [(0, 0)] * (SLOTS - len(step.named))

    def pad_kind(step):
        return [kind for _, kind in step.named] + [-1] * (SLOTS - len(step.named))

    goal = tensor(lambda s: s.goal, torch.int16)
    kind = tensor(lambda s: s.kind, torch.int8)
    shape = kind.shape
    return TensorDict(
        {
            "observation": tensor(lambda s: [s.observation]),
            "action": tensor(lambda s: s.observation % 5),
            "goal_tokens": goal,
            "goal_kind": kind,
            "step_count": tensor(lambda s: [s.count]),
            "hindsight": {
                "goal_tokens": torch.zeros(*shape, SLOTS, WIDTH, dtype=torch.int16),
                "kind": torch.full((*shape, SLOTS), -1, dtype=torch.int8),
            },
            "next": {
                "observation": tensor(lambda s: [s.next_observation]),
                "goal_tokens": goal.clone(),
                "goal_kind": kind.clone(),
                "reward": tensor(lambda s: [s.reward]),
                "done": tensor(lambda s: [s.done]),
                "terminated": tensor(lambda s: [s.terminated]),
                "truncated": tensor(lambda s: [s.truncated]),
                "hindsight": {
                    "goal_tokens": tensor(pad, torch.int16),
                    "kind": tensor(pad_kind, torch.int8),
                },
            },
        },
        batch_size=shape,
    )


def batches(streams, splits):
    """Cuts equally long streams [N][T] into the batches of successive ``extend`` calls."""
    start = 0
    for size in splits:
        yield to_batch([line[start : start + size] for line in streams])
        start += size


def reference_rows(stream, relabel, n_steps, gamma, strategy="future"):
    """Rows that one environment's steps must give."""
    rows = []
    for episode in episodes_of(stream):
        rows += n_step(episode, n_steps, gamma, hindsight=False)
        for segment in relabelled(episode, relabel, strategy):
            rows += n_step(segment, n_steps, gamma, hindsight=True)
    return rows


def episodes_of(stream):
    """The finished episodes of one environment, lists of steps."""
    episode = []
    for step in stream:
        episode.append(step)
        if step.done:
            yield episode
            episode = []


def relabelled(episode, relabel, strategy):
    """An episode's segments under the goals named in it, lists of steps."""
    end = episode[-1]
    if relabel == "none" or (relabel == "failed" and end.reward > 0):
        return []
    segments = []
    named = [(t, *g) for t, step in enumerate(episode) for g in step.named if g[0] != step.goal]
    for t, goal, kind in named:
        if strategy == "final" and t < max(s for s, _, _ in named):
            continue
        begin = max((s + 1 for s, other, _ in named if s < t and other == goal), default=0)
        segments.append(under_goal(episode[begin : t + 1], goal, kind))
        segments[-1][-1] = replace(segments[-1][-1], reward=1.0, done=True, terminated=True)
        again = any(s > t and other == goal for s, other, _ in named)
        if strategy == "episode" and not again and t + 1 < len(episode):
            failed = end.terminated and end.reward <= 0
            segments.append(under_goal(episode[t + 1 :], goal, kind))
            segments[-1][-1] = replace(
                segments[-1][-1], done=True, terminated=failed, truncated=not failed
            )
    return segments


def under_goal(steps, goal, kind):
    """The same steps as if ``goal`` had been pursued, without reward and end."""
    return [
        replace(s, goal=goal, kind=kind, reward=0.0, done=False, terminated=False, truncated=False)
        for s in steps
    ]


def n_step(steps, n_steps, gamma, hindsight):
    """n-step rows of one segment that ends with done."""
    rows = []
    for t, step in enumerate(steps):
        window = steps[t : t + n_steps]
        rows.append(
            Row(
                observation=step.observation,
                next_observation=window[-1].next_observation,
                goal=step.goal,
                next_goal=window[-1].goal,
                kind=step.kind,
                reward=sum(gamma**k * s.reward for k, s in enumerate(window)),
                done=window[-1].done,
                terminated=window[-1].terminated,
                truncated=window[-1].truncated,
                steps=len(window),
                hindsight=hindsight,
            )
        )
    return rows


def to_rows(data):
    """Rows of a stored or let-out tensordict [M]; rewards rounded to six digits."""
    if data is None:
        return []
    following = data["next"]
    columns = {
        "observation": data["observation"],
        "next_observation": following["observation"],
        "goal": data["goal_tokens"],
        "next_goal": following["goal_tokens"],
        "kind": data["goal_kind"],
        "reward": following["reward"],
        "done": following["done"],
        "terminated": following["terminated"],
        "truncated": following["truncated"],
        "steps": data["steps_to_next_obs"],
        "hindsight": data["is_hindsight"],
    }
    lists = {
        name: [tuple(v) for v in value.tolist()] if "goal" in name else value.flatten().tolist()
        for name, value in columns.items()
    }
    return [Row(*values) for values in zip(*lists.values(), strict=True)]


def as_multiset(rows):
    """Rows in an order of their own, with rewards rounded, to be compared."""
    return sorted(tuple(vars(replace(row, reward=round(row.reward, 5))).values()) for row in rows)
