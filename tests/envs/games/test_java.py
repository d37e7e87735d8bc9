"""The games whose simulators run on Java."""

import shutil

import pytest

from torchrl_glam.envs import check_text_env
from torchrl_glam.text import decode_text

from .playing import choose

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="java is not installed"),
]


def test_textworld_express():
    pytest.importorskip("textworld_express", reason="pip install torchrl_glam[textworld-express]")
    from torchrl_glam.envs.games.textworld_express import make_textworld_express

    params = "numLocations=1,includeDoors=0,numDistractorItems=0"
    env = make_textworld_express("coin", params, num_envs=2, seed=0)
    check_text_env(env, steps=5)
    step, _ = choose(env, env.reset(), "take coin")
    assert step["success"].all() and step["terminated"].all()
    assert step["reward"].tolist() == [[1.0], [1.0]]
    assert decode_text(step["hindsight", "goal"]) == [["Take the coin", ""]] * 2
    env.close()
    assert env.games[0].simulator._gateway.java_process.wait(timeout=60) == 0
    with pytest.raises(ValueError, match=r"game \('chess'\) must be one of \['cookingworld'"):
        make_textworld_express("chess")
    with pytest.raises(ValueError, match=r"fold \('valid'\) must be"):
        make_textworld_express(fold="valid")


def test_scienceworld():
    pytest.importorskip("scienceworld", reason="pip install torchrl_glam[scienceworld]")
    from torchrl_glam.envs.games.scienceworld import kind_of, make_scienceworld

    env = make_scienceworld(num_envs=2, seed=0, overflow="first")
    check_text_env(env, steps=1)
    state = env.reset()
    assert (state["action_mask"].sum(-1) > 50).all()
    assert all(goal.startswith("Your task is to find a") for goal in decode_text(state["goal"]))
    step, _ = choose(env, state, "look around")
    assert not step["done"].any() and not step["success"].any() and not step["reward"].any()
    env.close()
    assert env.games[0].simulator._gateway.java_process.wait(timeout=60) == 0
    for wrong in ({"fold": "valid"}, {"reward": "points"}):
        with pytest.raises(ValueError, match=r"\('(valid|points)'\) must be"):
            make_scienceworld(**wrong)
    with pytest.raises(
        ValueError, match=r"kinds \(\['\('\]\) must be regular expressions: missing"
    ):
        make_scienceworld(kinds=["("])
    env = make_scienceworld(kinds="focus on", max_actions=1024)
    [game] = env.games
    assert all(text.startswith("focus on") for text in game.reset(seed=0)[1]["actions"])
    # what was done is named, and some kinds of actions are left
    kinds = ["teleport to", "focus on", "pick up", "move .* box$"]
    env = make_scienceworld(num_envs=1, max_actions=1024, kinds=kinds)
    [game] = env.games
    _, info = game.reset(seed=0)  # a non-living thing belongs into the red box in the kitchen
    done = {
        "teleport to kitchen": "Go to the kitchen",
        "pick up apple": "Move the apple to the inventory",
        "focus on lighter": "Focus on the lighter",
        "move lighter to red box": "Move the lighter to the red box",
    }
    for action, named in done.items():
        assert action in info["actions"]
        assert all(text.startswith((*kinds[:3], "move ")) for text in info["actions"])
        assert all(text.endswith("box") for text in info["actions"] if text.startswith("move "))
        _, reward, over, _, info = game.step(action)
        assert info["reached"][0] == named
    assert info["reached"][1:] == [info["goal"]] and over and reward == 1
    assert [kind_of(goal) for goal in info["reached"]] == [2, 0]
    env.close()
    # with the score as reward, steps on the way to the end are rewarded
    env = make_scienceworld(num_envs=1, seed=0, max_actions=1024, reward="score")
    state, simulator = env.reset(), env.games[0].simulator
    before = simulator.server.getScore()
    room = decode_text(state["goal"])[0].rstrip(".").rsplit(" in the ", 1)[1]
    step, _ = choose(env, state, f"teleport to {room}")  # where the answer belongs
    gained = simulator.server.getScore() - before
    assert gained > 0
    assert step["reward"].item() == pytest.approx(gained, abs=0.01)
    assert not step["success"].any() and not step["done"].any()
    env.close()
