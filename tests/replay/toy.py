"""Random episodes, and the buffer's content computed from them one step at a time.

The reference knows nothing of tensors, and follows the words of the papers: Hindsight Experience
Replay (Andrychowicz et al., 2017, section 4.5) says with which goals a transition is replayed,
SAC-GLAM (Gaven et al., 2024, section 2.3) what reward and end it then has.
"""

from collections import namedtuple

import torch
from hypothesis import strategies as st
from tensordict import TensorDict

WIDTH, SLOTS = 2, 3  # tokens of a goal; goals that can be named after one step
ENDS = ("done", "terminated", "truncated")
# A transition: observations are unique integers, goals pairs of tokens; ``named`` is (goal, kind)
# for each slot, or None.
Step = namedtuple(
    "Step", "observation, following, goal, kind, reward, done, terminated, truncated, named"
)
Row = namedtuple(  # one transition in the replay buffer
    "Row",
    "observation, following, goal, following_goal, kind, reward, done, terminated, truncated, "
    "steps, hindsight",
)

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
    shaped = iter(shaped or [scale[0]] * sum(lengths))
    observation = first_observation
    for episode, (length, outcome) in enumerate(zip(lengths, outcomes, strict=True)):
        pursued = (plain(100 + episode), number(0))
        for t in range(length):
            last = t == length - 1 and outcome != RUNNING
            unreached = next(shaped)
            reward = scale[1] if last and outcome.startswith(SUCCESS) else unreached
            ends = (last, last and not outcome.startswith(TIMEOUT), last and "time" in outcome)
            slots = tuple(
                goal and ((plain(1), number(goal[0])) if goal[0] else pursued, goal[1])
                for goal in next(named)
            )
            moved = (observation, observation + 1, pursued, episode % 4)
            steps.append(Step(*moved, reward, *ends, slots))
            observation += 1
        observation += 1  # the next episode starts from another observation: automatic reset
    return steps


@st.composite
def streams(draw, max_envs=4, max_steps=24, first_observation=0, number=int, scale=(0.0, 1.0)):
    """Equally long streams of steps for some environments, and a split into calls."""
    num_envs = draw(st.integers(1, max_envs))
    total = draw(st.integers(1, max_steps))
    slots = st.lists(
        st.none() | st.integers(0, 5).map(lambda token: (token, token % 4)), max_size=SLOTS
    )
    low, high = scale
    shaped_rewards = st.sampled_from([low, low, low + (high - low) / 8, low + (high - low) / 2])
    lines = []
    for env in range(num_envs):
        lengths = []
        while sum(lengths) < total:
            lengths.append(draw(st.integers(1, 9)))
        outcomes = [draw(st.sampled_from(OUTCOMES)) for _ in lengths]
        if sum(lengths) > total:
            lengths[-1] -= sum(lengths) - total
            outcomes[-1] = RUNNING
        named = [draw(slots) for _ in range(total)]
        shaped = [draw(shaped_rewards) for _ in range(total)]
        first = first_observation + 1000 * env
        lines.append(make_stream(lengths, outcomes, named, first, shaped, scale, number))
    splits = []
    while sum(splits) < total:
        splits.append(draw(st.integers(1, total - sum(splits))))
    return lines, splits


def to_batch(columns, goal_dtype=torch.int16):
    """Collector batch [N, T] from N lists of T steps each."""

    def tensor(field, dtype=None):
        return torch.tensor([[field(step) for step in line] for line in columns], dtype=dtype)

    def slots(step):
        return [slot or ((7, 7), -1) for slot in (*step.named, *[None] * (SLOTS - len(step.named)))]

    pursued = {
        "goal_tokens": tensor(lambda s: s.goal, goal_dtype),
        "goal_kind": tensor(lambda s: s.kind, torch.int8),
    }
    named = {
        "goal_tokens": tensor(lambda s: [goal for goal, _ in slots(s)], goal_dtype),
        "kind": tensor(lambda s: [kind for _, kind in slots(s)], torch.int8),
    }
    observation = tensor(lambda s: [s.observation])
    following = {"observation": tensor(lambda s: [s.following]), **pursued, "hindsight": named}
    for key in ("reward", *ENDS):
        following[key] = tensor(lambda s, key=key: [getattr(s, key)])
    return TensorDict(
        {
            "observation": observation,
            "action": observation.squeeze(-1) % 5,
            **pursued,
            "hindsight": {key: torch.zeros_like(value) for key, value in named.items()},
            "next": following,
        },
        batch_size=observation.shape[:2],
    )


def batches(streams, splits, goal_dtype=torch.int16):
    start = 0
    for size in splits:
        yield to_batch([line[start : start + size] for line in streams], goal_dtype)
        start += size


def reference_rows(
    streams, relabel="all", n_steps=1, gamma=1.0, strategy="future", scale=(0.0, 1.0)
):
    rows = []
    for episode in (episode for stream in streams for episode in episodes_of(stream)):
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
    moved = (first.observation, end.following, first.goal, end.goal, first.kind)
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
    moved = (episode[t].observation, step.following, goal, goal, kind)
    return Row(*moved, total, success, success, False, steps=steps, hindsight=True)


def to_rows(data):
    """Rows of a stored or let-out tensordict [M]; of one step each, where it does not say."""
    if data is None:
        return []
    following = data["next"]
    columns = [
        *(td[key] for key in ("observation", "goal_tokens") for td in (data, following)),
        data["goal_kind"],
        *(following[key] for key in ("reward", *ENDS)),
        data.get("steps_to_next_obs", torch.ones(len(data))),
        data["is_hindsight"],
    ]
    lists = [
        [tuple(x) if len(x) == WIDTH else x[0] for x in column.reshape(len(data), -1).tolist()]
        for column in columns
    ]
    return [Row(*values) for values in zip(*lists, strict=True)]


def rows_of(transform, batches):
    """Rows that a transform makes of batches, one after another."""
    return [row for batch in batches for row in to_rows(transform.inv(batch))]


def as_multiset(rows):
    """Rows in an order of their own, with rewards rounded, to be compared."""
    return sorted(tuple(row._replace(reward=round(row.reward, 5))) for row in rows)
