"""Random episodes, and the buffer's content computed from them one step at a time.

The reference knows nothing of tensors, and follows the words of the papers: Hindsight Experience
Replay (Andrychowicz et al., 2017, section 4.5) says with which goals a transition is replayed,
SAC-GLAM (Gaven et al., 2024, section 2.3) what reward and end it then has.
"""

from collections import namedtuple
from dataclasses import dataclass

import torch
from tensordict import TensorDict

WIDTH, SLOTS = 2, 3  # tokens of a goal; goals that can be named after one step
ENDS = ("done", "terminated", "truncated")
Row = namedtuple(  # one transition in the replay buffer
    "Row",
    "observation, following, goal, following_goal, kind, reward, done, terminated, truncated, "
    "steps, hindsight",
)


@dataclass(frozen=True)
class Step:
    """One transition; observations are unique integers, goals pairs of tokens."""

    observation: int
    next_observation: int
    goal: tuple[float, float]
    kind: int
    reward: float
    done: bool
    terminated: bool
    truncated: bool
    named: tuple[tuple[tuple[float, float], int] | None, ...]  # slots: (goal, kind), or empty


SUCCESS, FAILURE, TIMEOUT, RUNNING = "success", "failure", "timeout", "running"
OUTCOMES = (SUCCESS, FAILURE, TIMEOUT, "success at the time limit", "failure at the time limit")


def make_stream(
    lengths, outcomes, named, first_observation, shaped=None, scale=(0.0, 1.0), number=int
):
    """Steps of one environment: episodes of the given lengths, outcomes and named goals.

    A failure is terminal without reward; at the time limit, terminated and truncated. ``named`` are
    per step the goals named, as (token, kind) pairs: token 0 stands for the goal that the episode
    pursues, None for an empty slot. ``shaped`` is per step the reward of one that does not end in
    success; None for ``scale[0]``. ``number`` makes the second number of a goal from its token.
    """
    steps, named, plain = [], iter(named), type(number(0))
    shaped = iter([scale[0]] * sum(lengths) if shaped is None else shaped)
    observation = first_observation
    for episode, (length, outcome) in enumerate(zip(lengths, outcomes, strict=True)):
        pursued = (plain(100 + episode), number(0))
        for t in range(length):
            last = t == length - 1 and outcome != RUNNING
            reward = next(shaped)
            steps.append(
                Step(
                    observation=observation,
                    next_observation=observation + 1,
                    goal=pursued,
                    kind=episode % 4,
                    reward=scale[1] if last and outcome.startswith(SUCCESS) else reward,
                    done=last,
                    terminated=last and not outcome.startswith(TIMEOUT),
                    truncated=last and "time" in outcome,
                    named=tuple(
                        goal and ((plain(1), number(goal[0])) if goal[0] else pursued, goal[1])
                        for goal in next(named)
                    ),
                )
            )
            observation += 1
        observation += 1  # the next episode starts from another observation: automatic reset
    return steps


def to_batch(columns, goal_dtype=torch.int16):
    """Collector batch [N, T] from N lists of T steps each."""

    def tensor(field, dtype=None):
        return torch.tensor([[field(step) for step in line] for line in columns], dtype=dtype)

    def slots(step):
        return [slot or ((7, 7), -1) for slot in (*step.named, *[None] * (SLOTS - len(step.named)))]

    goal = tensor(lambda s: s.goal, goal_dtype)
    kind = tensor(lambda s: s.kind, torch.int8)
    shape = kind.shape
    return TensorDict(
        {
            "observation": tensor(lambda s: [s.observation]),
            "action": tensor(lambda s: s.observation % 5),
            "goal_tokens": goal,
            "goal_kind": kind,
            "hindsight": {
                "goal_tokens": torch.zeros(*shape, SLOTS, WIDTH, dtype=goal_dtype),
                "kind": torch.full((*shape, SLOTS), -1, dtype=torch.int8),
            },
            "next": {
                "observation": tensor(lambda s: [s.next_observation]),
                "goal_tokens": goal.clone(),
                "goal_kind": kind.clone(),
                **{end: tensor(lambda s, end=end: [getattr(s, end)]) for end in ("reward", *ENDS)},
                "hindsight": {
                    "goal_tokens": tensor(lambda s: [goal for goal, _ in slots(s)], goal_dtype),
                    "kind": tensor(lambda s: [kind for _, kind in slots(s)], torch.int8),
                },
            },
        },
        batch_size=shape,
    )


def batches(streams, splits, goal_dtype=torch.int16):
    start = 0
    for size in splits:
        yield to_batch([line[start : start + size] for line in streams], goal_dtype)
        start += size


def reference_rows(
    stream, relabel="all", n_steps=1, gamma=1.0, strategy="future", scale=(0.0, 1.0)
):
    rows = []
    for episode in episodes_of(stream):
        rows += [plain_row(episode, t, n_steps, gamma) for t in range(len(episode))]
        if relabel == "all":
            rows += [
                hindsight_row(episode, t, goal, n_steps, gamma, scale)
                for t in range(len(episode))
                for goal in goals_to_replay_with(episode, t, strategy)
            ]
    return rows


def episodes_of(stream):
    episode = []
    for step in stream:
        episode.append(step)
        if step.done:
            yield episode
            episode = []


def reached(step):
    """The goals, {goal: kind}, that a step reaches, without the one that is pursued anyway."""
    named = [slot for slot in reversed(step.named) if slot is not None]
    return {goal: kind for goal, kind in named if goal != step.goal}


def goals_to_replay_with(episode, t, strategy):
    """Different goals that a strategy replays transition t with.

    "future": states which come from the same episode as the transition and were observed after it.
    "final": the final state of the episode, which is, with a partner who does not name something
    after every step, the last one named.
    """
    ends = [s for s, step in enumerate(episode) if reached(step)]
    later = [s for s in (ends if strategy == "future" else ends[-1:]) if s >= t]
    return dict.fromkeys(goal for s in later for goal in reached(episode[s]))


def plain_row(episode, t, n_steps, gamma):
    """The n-step transition from step t on, as it was."""
    window, first = episode[t : t + n_steps], episode[t]
    end, total = window[-1], sum(gamma**k * step.reward for k, step in enumerate(window))
    moved = (first.observation, end.next_observation, first.goal, end.goal, first.kind)
    ends = (getattr(end, key) for key in ENDS)
    return Row(*moved, total, *ends, steps=len(window), hindsight=False)


def hindsight_row(episode, t, goal, n_steps, gamma, scale):
    """The n-step transition from step t on, had ``goal`` been pursued: reaching it ends it."""
    total = 0.0
    for steps, step in enumerate(episode[t : t + n_steps], start=1):
        success = goal in reached(step)
        total += gamma ** (steps - 1) * scale[success]
        if success:
            break
    kind = next(reached(later)[goal] for later in episode[t:] if goal in reached(later))
    moved = (episode[t].observation, step.next_observation, goal, goal, kind)
    return Row(*moved, total, success, success, False, steps=steps, hindsight=True)


def to_rows(data):
    """Rows of a stored or let-out tensordict [M]."""
    if data is None:
        return []
    following = data["next"]
    columns = [
        *(td[key] for key in ("observation", "goal_tokens") for td in (data, following)),
        data["goal_kind"],
        *(following[key] for key in ("reward", *ENDS)),
        data["steps_to_next_obs"],
        data["is_hindsight"],
    ]
    lists = [
        [tuple(v) for v in value.tolist()]
        if value.shape[1:] == (WIDTH,)
        else value.flatten().tolist()
        for value in columns
    ]
    return [Row(*values) for values in zip(*lists, strict=True)]


def as_multiset(rows):
    """Rows in an order of their own, with rewards rounded, to be compared."""
    return sorted(tuple(row._replace(reward=round(row.reward, 5))) for row in rows)
