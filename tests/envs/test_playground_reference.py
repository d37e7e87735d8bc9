"""The environment against the second implementation, on random episodes."""

import os
import random

import playground_reference as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.text import decode_text

GOALS = {
    (split, sequential): reference.all_goals(split, sequential)
    for split in ("train", "test")
    for sequential in (True, False)
}
NUM_ENVS, STEPS = 8, 36
THOROUGH = 4 if os.environ.get("CI") else 1


def choose(rng, episode, purpose):
    """An admissible action; the more purpose, the more it grows and grasps things."""
    actions, state = reference.list_actions(episode.objects), episode.state
    living = [item for item in episode.objects if reference.feeds("red water", item)]
    if rng.random() < purpose:
        if state.holding is None and state.on is not None:
            return "Grasp"
        if state.holding is not None and state.holding not in living:
            food = [x for x in living if reference.feeds(state.holding, x)]
            if food and rng.random() < 0.9:
                return f"Go to {rng.choice(food)}"
    return rng.choice([action for action in actions if reference.is_admissible(state, action)])


def start(env, row):
    """The second implementation's episode that starts where a row of the environment does."""
    objects = [OBJECTS[item] for item in row["state"]["objects"]]
    goals = GOALS[env.goals.split, env.goals.sequential]
    return reference.Episode(row["goal"], objects, goals, env.max_steps)


def check_state(env, row, episode, named):
    """Compares everything that the environment writes about one episode."""
    objects, now = episode.objects, episode.state
    assert row["goal"] == episode.goal == env.goals[row["goal_id"]]
    assert env.goals.kinds[row["goal_kind"]] == episode.goals[episode.goal]
    assert row["observation"] == reference.describe(objects, now)
    actions = reference.list_actions(objects)
    assert row["actions"] == actions
    assert row["action_mask"] == [reference.is_admissible(now, action) for action in actions]
    slots = {None: -1} | {item: slot for slot, item in enumerate(objects)}
    state = row["state"]
    assert state["on"] == slots[now.on] and state["holding"] == slots[now.holding]
    assert state["grown"] == [item in now.grown for item in objects]
    assert state["stage"] == episode.stage
    hindsight, count = row["hindsight"], len(named)
    texts = ["" if goal == -1 else env.goals[goal] for goal in hindsight["goal_id"]]
    assert set(texts[:count]) == named and set(texts[count:]) <= {""}
    kinds = [env.goals.kinds.index(episode.goals[text]) if text else -1 for text in texts]
    assert hindsight["kind"] == kinds


def rows(state):
    """One dictionary per environment, with text as strings and the rest as plain numbers."""
    texts = {key: decode_text(state[key]) for key in ("goal", "observation", "actions")}
    plain = state.exclude(*texts).tolist(convert_tensors=True)
    return [row | {key: text[i] for key, text in texts.items()} for i, row in enumerate(plain)]


# Each example plays some 8 * 36 / 12 = 24 episodes.
@settings(max_examples=25 * THOROUGH, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([(3, False), (3, True), (4, True), (6, False), (6, True), (9, True)]),
    split=st.sampled_from(["train", "test"]),
    max_steps=st.integers(1, 20),
    purpose=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_same_episodes(seed, size, split, max_steps, purpose):
    num_objects, sequential = size
    env = PlaygroundTextEnv(NUM_ENVS, num_objects, split, sequential, max_steps, seed)
    rng = random.Random(seed)
    state = env.reset()
    episodes = [start(env, row) for row in rows(state)]
    for row, episode in zip(rows(state), episodes, strict=True):
        check_state(env, row, episode, named=set())
    for _ in range(STEPS):
        actions = [choose(rng, episode, purpose) for episode in episodes]
        numbers = [
            reference.list_actions(episode.objects).index(action)
            for episode, action in zip(episodes, actions, strict=True)
        ]
        data, state = env.step_and_maybe_reset(state.set("action", torch.tensor(numbers)))
        fresh = rows(state)
        for index, after in enumerate(rows(data["next"])):
            reward, terminated, truncated, named = episodes[index].step(actions[index])
            check_state(env, after, episodes[index], named)
            assert after["reward"] == [reward]
            assert after["terminated"] == [terminated]
            assert after["truncated"] == [truncated]
            assert after["done"] == [terminated or truncated]
            if terminated or truncated:
                episodes[index] = start(env, fresh[index])
                check_state(env, fresh[index], episodes[index], named=set())
