"""Records of episodes against what is known of shortest plans."""

from unittest import mock

import pytest
import stairs
import torch
from torchrl.envs import SerialEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.text import decode_text
from torchrl_glam.viewing import nearest_goals, play, record

from .records import Dabbler, Planner

SIMPLE = {"num_objects": 3, "sequential": False, "max_steps": 10}


@pytest.fixture(scope="module")
def planned():
    env = PlaygroundTextEnv(40, **SIMPLE)
    return record(Planner(env.goals), env, seed=3)


def test_shortest_plans_are_written_down_step_by_step(planned):
    assert {episode["kind"] for episode in planned} == {0, 1}
    for episode in planned:
        steps = episode["steps"]
        assert episode["success"] and len(steps) == 2 + episode["kind"]
        assert [step["reward"] for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
        assert episode["goal"].startswith(("Grasp", "Grow")[episode["kind"]])
        for step in steps:
            assert step["probability"][step["chosen"]] == 1.0
            assert step["value"][step["chosen"]] == 1.0
            assert len(step["candidates"]) == len(step["probability"]) == len(step["value"])
        assert "Release" not in steps[0]["candidates"]  # empty hands
        # The partner names what was grasped, unless it is the goal itself.
        assert steps[0]["named"] == [] and steps[1]["candidates"][steps[1]["chosen"]] == "Grasp"
        held = steps[0]["candidates"][steps[0]["chosen"]].removeprefix("Go to ")
        named = [*steps[1]["named"], episode["goal"]]
        assert f"Grasp any {held.split()[0]} thing" in named


def test_the_scene_is_the_one_that_the_text_describes(planned):
    for step in (step for episode in planned for step in episode["steps"]):
        scene, lines = step["scene"], step["observation"].split("\n")
        places = {-1: "nothing"} | dict(enumerate(scene["objects"]))
        seen = [name for slot, name in enumerate(scene["objects"]) if slot != scene["holding"]]
        assert lines[0] == "You see: " + ", ".join(seen)
        assert lines[1] == f"You are on: {places[scene['on']]}"
        assert lines[2] == f"You are holding: {places[scene['holding']]}"
        grown = ", ".join(places[slot] for slot in scene["grown"]) or "nothing"
        assert lines[3] == f"You have grown: {grown}"


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
    for episode in first:
        assert episode["success"] == (episode["steps"][-1]["reward"] == 1.0)
    assert all(episode["over"] for episode in first)
    broken = record(Dabbler(), env, seed=5, max_steps=4)
    assert max(len(episode["steps"]) for episode in broken) == 4
    assert [e["over"] for e in broken] == [len(e["steps"]) <= 4 for e in first]


def converse(env, agent, *said):
    words, heard = iter(said), []
    won = play(env, agent, read=lambda prompt: next(words), write=heard.append)
    return won, "\n".join(heard)


def goal_of(env, goal):
    index = env.goals.id_of(goal)
    return PlaygroundTextEnv(1, **SIMPLE, goal_sampler=lambda _, n: torch.full((n,), index), seed=0)


def test_a_person_plays_to_the_goal():
    env = goal_of(PlaygroundTextEnv(1, **SIMPLE), "Grasp red lion")
    said = ("h", "fly", "99", "go to  RED lion", "h", "Grasp")
    won, heard = converse(env, Planner(env.goals), *said)
    assert won and "Goal reached in 2 steps." in heard
    assert "Goal: Grasp red lion (step 1 of 10)" in heard and "You are on: red lion" in heard
    assert "'fly' is no action here" in heard and "'99' is no action here" in heard
    first, second = (line for line in heard.split("\n") if line.startswith("100.0%"))
    assert first.endswith("Go to red lion (Q 1.000)") and second.endswith("Grasp (Q 1.000)")


def test_a_person_may_fail_leave_and_ask_nobody():
    env = goal_of(PlaygroundTextEnv(1, **SIMPLE), "Grasp red lion")
    won, heard = converse(env, None, "h", *["Grasp"] * 10)
    assert not won and "over after 10 steps, and the goal is not reached" in heard
    assert "There is no agent to ask" in heard
    assert converse(env, None, "q")[0] is False
    assert play(env, read=mock.Mock(side_effect=EOFError), write=lambda text: None) is False


def test_a_game_without_a_batch_is_recorded_and_played():
    [episode] = record(Dabbler(), stairs.alone(), seed=0)
    assert 1 <= len(episode["steps"]) <= 8
    goal = stairs.alone(seed=0).reset()["goal"]
    floor = int(decode_text(goal).split()[-1])
    said = ["up" if floor > 0 else "down"] * abs(floor)
    assert converse(stairs.alone(seed=0), None, *said)[0]


def test_a_person_is_advised_whatever_the_batch():
    """None, and one of two dimensions as a batched environment has it."""
    nested = SerialEnv(1, lambda: stairs.make(1, seed=0))
    for env in (stairs.alone(seed=0), nested):
        said = converse(env, Dabbler(), "h", "q")[1].split("\n")[-3:]
        assert sorted(line.split(" (Q")[0].split()[-1] for line in said) == ["down", "up", "wait"]


def test_what_cannot_be_played_or_recorded_is_named():
    with pytest.raises(ValueError, match=r"env has 2 instances .*: play takes one"):
        converse(stairs.make(2), None, "up")
    with pytest.raises(ValueError, match=r"max_steps \(0\) must be at least 1, or None"):
        record(Dabbler(), stairs.make(1), max_steps=0)


def test_an_unknown_goal_gets_the_nearest_ones():
    goals = PlaygroundTextEnv(1).goal_texts
    wanted = "Grow red lion then grasp blue chair"
    assert goals[nearest_goals(wanted.upper(), goals)] == wanted
    with pytest.raises(ValueError, match="the nearest are 'Grasp red door'"):
        nearest_goals("zzzz", goals)
