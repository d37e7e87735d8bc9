"""Records of episodes against what is known of shortest plans."""

from unittest import mock

import playground_reference as reference
import pytest
import stairs
import torch
from torchrl.envs import SerialEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.text import decode_text
from torchrl_glam.viewing import nearest_goals, play, record

from .records import SIMPLE, Dabbler, Planner


def test_shortest_plans_are_written_down_step_by_step():
    """As the rules in plain Python play them."""
    env, goals = PlaygroundTextEnv(40, max_steps=20), reference.all_goals("train")
    planned = record(Planner(env.goals), env, seed=3)
    assert any(step["scene"]["grown"] for episode in planned for step in episode["steps"])
    for episode in planned:
        goal, steps = episode["goal"], episode["steps"]
        objects = steps[0]["scene"]["objects"]
        assert goals[goal] == env.goals.kinds[episode["kind"]]
        played = reference.Episode(goal, objects, goals, max_steps=20)
        for step in steps:
            state, chosen, actions = played.state, step["chosen"], step["candidates"]
            assert step["observation"] == reference.describe(objects, state)
            on, holding = ([None, *objects].index(item) - 1 for item in (state.on, state.holding))
            grown = [slot for slot, item in enumerate(objects) if item in state.grown]
            scene = {"objects": objects, "on": on, "holding": holding, "grown": grown}
            assert step["scene"] == scene
            every = reference.list_actions(objects)
            assert actions == [a for a in every if reference.is_admissible(state, a)]
            assert len(actions) == len(step["probability"]) == len(step["value"])
            assert step["probability"][chosen] == step["value"][chosen] == 1.0
            reward, success, _, named = played.step(actions[chosen])
            assert (step["reward"], {*step["named"]}) == (reward, named)
        assert success and episode["success"]


def test_the_same_seed_gives_every_agent_the_same_scenes():
    env = PlaygroundTextEnv(8, **SIMPLE)
    before = torch.get_rng_state()
    first, again = (record(Dabbler(), env, seed=5) for _ in range(2))
    other = record(Planner(env.goals), env, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again
    for one, two in zip(first, other, strict=True):
        assert one["goal"] == two["goal"]
        assert one["steps"][0]["scene"] == two["steps"][0]["scene"]
    lengths = [len(episode["steps"]) for episode in first]
    assert max(lengths) == 10 and not all(episode["success"] for episode in first)
    assert all(e["over"] and e["success"] == (e["steps"][-1]["reward"] == 1.0) for e in first)
    broken = record(Dabbler(), env, seed=5, max_steps=4)
    assert max(len(episode["steps"]) for episode in broken) == 4
    assert [e["over"] for e in broken] == [len(e["steps"]) <= 4 for e in first]


def converse(env, agent, *said):
    words, heard = iter(said), []
    won = play(env, agent, read=lambda prompt: next(words), write=heard.append)
    return won, "\n".join(heard)


def test_a_person_plays_to_the_goal_fails_or_leaves():
    goal = PlaygroundTextEnv(1, **SIMPLE).goals.id_of("Grasp red lion")
    env = PlaygroundTextEnv(1, **SIMPLE, goal_sampler=lambda _, n: torch.full((n,), goal), seed=0)
    said = ("h", "fly", "99", "go to  RED lion", "h", "Grasp")
    won, heard = converse(env, Planner(env.goals), *said)
    assert won and "Goal reached in 2 steps." in heard
    assert "Goal: Grasp red lion (step 1 of 10)" in heard and "You are on: red lion" in heard
    assert "'fly' is no action here" in heard and "'99' is no action here" in heard
    first, second = (line for line in heard.split("\n") if line.startswith("100.0%"))
    assert first.endswith("Go to red lion (Q 1.000)") and second.endswith("Grasp (Q 1.000)")
    # With nobody to ask
    won, heard = converse(env, None, "h", *["Grasp"] * 10)
    assert not won and "over after 10 steps, and the goal is not reached" in heard
    assert "There is no agent to ask" in heard
    assert converse(env, None, "q")[0] is False
    assert play(env, read=mock.Mock(side_effect=EOFError), write=lambda text: None) is False


def test_a_game_without_a_batch_is_recorded_played_and_known_by_an_agent():
    [episode] = record(Dabbler(), stairs.alone(), seed=0)
    assert 1 <= len(episode["steps"]) <= 8
    floor = int(decode_text(stairs.alone(seed=0).reset()["goal"]).split()[-1])
    said = ["up" if floor > 0 else "down"] * abs(floor)
    assert converse(stairs.alone(seed=0), None, *said)[0]
    # A person is advised there, and in a batch of two dimensions.
    nested = SerialEnv(1, lambda: stairs.make(1, seed=0))
    for env in (stairs.alone(seed=0), nested):
        said = converse(env, Dabbler(), "h", "q")[1].split("\n")[-3:]
        assert sorted(line.split(" (Q")[0].split()[-1] for line in said) == ["down", "up", "wait"]


def test_what_cannot_be_played_recorded_or_pursued_is_named():
    with pytest.raises(ValueError, match=r"env has 2 instances .*: play takes one"):
        converse(stairs.make(2), None, "up")
    with pytest.raises(ValueError, match=r"max_steps \(0\) must be at least 1, or None"):
        record(Dabbler(), stairs.make(1), max_steps=0)
    with pytest.raises(ValueError, match="the nearest are 'Grasp red door'"):
        nearest_goals("zzzz", PlaygroundTextEnv(1).goal_texts)
