"""BabyAI's levels in words, against the game's own judge of missions."""

import pytest
import torch
from torchrl.envs.utils import step_mdp

from torchrl_glam.envs import check_text_env
from torchrl_glam.text import decode_text

pytest.importorskip("minigrid", reason="pip install torchrl_glam[babyai]")

from torchrl_glam.envs.games.babyai import describe, make_babyai  # noqa: E402


@pytest.mark.parametrize("level", ["GoToRedBallNoDists", "GoToObj", "PickupDist"])
def test_what_hindsight_names_is_what_the_game_calls_success(level):
    env = make_babyai(level, num_envs=8, seed=0)
    check_text_env(env, steps=5)
    env.set_seed(0)
    steps = env.rollout(80, break_when_any_done=False).flatten()
    named = decode_text(steps["next", "hindsight", "goal"])
    pursued = decode_text(steps["goal"])
    reached = [goal in goals for goal, goals in zip(pursued, named, strict=True)]
    assert reached == steps["next", "success"].flatten().tolist() and any(reached)
    assert steps["next", "reward"].flatten().tolist() == [float(won) for won in reached]


def test_actions_that_do_nothing_are_left_out():
    env = make_babyai("PickupDist", seed=3)
    state = env.reset()
    for _ in range(60):
        (texts,) = decode_text(state["actions"])
        seen = decode_text(state["observation"])[0]
        carries = "You carry: nothing" not in seen
        assert ("drop" in texts) <= carries and not (carries and "pick up" in texts)
        ahead = " 1 forward," in seen.replace("\n", ",").split("Walls")[0]
        assert ("pick up" in texts) == (ahead and not carries)
        step = env.step(env.rand_action(state))["next"]
        state = step_mdp(step.new_empty(step.batch_size).set("next", step))
        if step["done"].any():
            state = env.reset()


def test_places_are_counted_from_the_agent():
    view = torch.zeros(5, 5, 3, dtype=torch.int64)
    view[2, 1] = torch.tensor([7, 3, 0])  # a purple box, three squares ahead
    view[0, 3] = torch.tensor([5, 4, 0])  # a yellow key, one ahead and two to the left
    view[3, 4], view[4, 4] = torch.tensor([1, 0, 0]), torch.tensor([2, 5, 0])
    view[2, 4] = torch.tensor([6, 1, 0])  # what is carried
    assert describe(view.numpy()).split("\n") == [
        "You see: yellow key 1 forward 2 left, purple box 3 forward",
        "Walls: 2 right",
        "You carry: green ball",
    ]


def test_an_unknown_level_is_named():
    with pytest.raises(ValueError, match=r"level \('GoToMoon'\) must be one of \['ActionObjDoor'"):
        make_babyai("GoToMoon")
