"""BabyAI's levels in words, against the game's own judge of missions."""

import numpy as np
import pytest

from torchrl_glam.envs import check_text_env
from torchrl_glam.text import decode_text

pytest.importorskip("minigrid", reason="pip install torchrl_glam[babyai]")

from minigrid.core.world_object import Ball, Box  # noqa: E402

from torchrl_glam.envs.games.babyai import make_babyai  # noqa: E402
from torchrl_glam.envs.games.babyai_room import HELD_OUT  # noqa: E402
from torchrl_glam.envs.games.babyai_words import describe  # noqa: E402

SMALL = {"distractors": 2, "room_size": 5}
OPEN = {"tasks": ["open"]}


@pytest.mark.parametrize(
    "options",
    [
        *({"level": level} for level in ("GoToRedBallNoDists", "GoToObj", "PickupDist")),
        *({"tasks": [task], **SMALL} for task in ("go to", "pick up", "open")),
        {"tasks": ["put next to"], "distractors": 0, "room_size": 5},
        {"tasks": ["unlock"], "distractors": 0, "room_size": 4},
        {"tasks": ["go to", "pick up", "put next to", "open"], "fold": "test", **SMALL},
    ],
    ids=str,
)
def test_what_hindsight_names_is_what_the_game_calls_success(options):
    env = make_babyai(num_envs=8, seed=0, **options)
    check_text_env(env, steps=5)
    env.set_seed(0)
    steps = env.rollout(150, break_when_any_done=False).flatten()
    named = decode_text(steps["next", "hindsight", "goal"])
    pursued = decode_text(steps["goal"])
    reached = [goal in goals for goal, goals in zip(pursued, named, strict=True)]
    assert reached == steps["next", "success"].flatten().tolist() and any(reached)
    assert steps["next", "reward"].flatten().tolist() == [float(won) for won in reached]


@pytest.mark.parametrize("fold", ["train", "test"])
def test_missions_of_the_test_fold_name_what_training_never_does(fold):
    env = make_babyai(tasks=["go to", "pick up", "put next to", "open"], fold=fold, num_envs=40)
    state = env.reset()
    goals = decode_text(state["goal"])
    assert all(any(name in goal for name in HELD_OUT) == (fold == "test") for goal in goals)
    kinds = [("go", "pick", "put", "open").index(goal.split(" ")[0]) for goal in goals]
    assert state["goal_kind"].tolist() == kinds and {*kinds} == {0, 1, 2, 3}


def stand(game, place, direction):
    """Puts the agent onto a square, which is cleared: 0 looks right, 1 down."""
    game.grid.set(*place, None)
    game.agent_pos, game.agent_dir = np.array(place), direction


def test_things_that_are_put_next_to_others_are_named():
    env = make_babyai(tasks=["go to"], distractors=0, room_size=4, seed=0)
    env.reset()
    [text] = env.games
    game = text.game
    [thing] = game.room_grid[0][0].objs
    game.grid.set(*thing.cur_pos, None)
    stand(game, (1, 1), direction=1)
    game.put_obj(Ball("red"), 1, 2)
    *_, info = text.step("pick up")
    wordings = ("red ball", "ball", "red object")
    assert info["reached"] == [f"pick up the {words}" for words in wordings]
    game.put_obj(Box("blue"), 2, 2)
    *_, info = text.step("drop")
    assert info["reached"] == ["go to the red ball", "put the red ball next to the blue box"]


def test_a_locked_door_opens_with_its_key():
    env = make_babyai(tasks=["unlock"], distractors=0, room_size=4, seed=1)
    [goal] = decode_text(env.reset()["goal"])
    [text] = env.games
    game, door = text.game, text.game.room_grid[0][0].doors[0]
    [key] = game.room_grid[0][0].objs
    assert goal == f"open the {door.color} door" and door.is_locked
    assert (key.type, key.color) == ("key", door.color)
    game.grid.set(*key.cur_pos, None)
    before_it = tuple(np.array(door.cur_pos) - (1, 0))
    stand(game, before_it, direction=0)
    _, _, won, _, info = text.step("toggle")
    assert not won and info["reached"] == [f"go to the {door.color} door"]
    stand(game, (1, 1), direction=1)
    game.put_obj(key, 1, 2)
    text.step("pick up")
    stand(game, before_it, direction=0)
    _, reward, won, _, info = text.step("toggle")
    opened = [f"open the {door.color} door", "open the door"]
    assert won and reward == 1 and info["reached"] == [f"go to the {door.color} door", *opened]


def test_actions_that_do_nothing_are_left_out():
    env = make_babyai("PickupDist", seed=3)
    [states] = env.rollout(60, break_when_any_done=False)
    for state in states:
        texts = decode_text(state["actions"])
        lines = decode_text(state["observation"]).split("\n")
        carries = lines[-1].startswith("You carry a ")
        assert ("drop" in texts) <= carries and not (carries and "pick up" in texts)
        ahead = any(line.endswith(" 1 step forward") for line in lines if "and" not in line)
        ahead = ahead and "You see a wall 1 step forward" not in lines
        assert ("pick up" in texts) == (ahead and not carries)


def test_places_are_counted_from_the_agent():
    view = np.zeros((5, 5, 3), dtype=int)
    view[2, 1] = 7, 3, 0  # a purple box, three squares ahead
    view[0, 3] = 5, 4, 0  # a yellow key, one ahead and two to the left
    view[3, 3] = 4, 0, 0  # an open red door, one ahead and one to the right
    view[3, 4], view[4, 4] = (1, 0, 0), (2, 5, 0)
    view[2, 4] = 6, 1, 0  # what is carried
    assert describe(view).split("\n") == [
        "You see a wall 2 steps right",
        "You see a yellow key 2 steps left and 1 step forward",
        "You see a purple box 3 steps forward",
        "You see an open red door 1 step right and 1 step forward",
        "You carry a green ball",
    ]
    assert describe(np.zeros((3, 3, 3), dtype=int)) == "You see nothing"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "GoToMoon"}, r"level \('GoToMoon'\) must be one of \['ActionObjDoor'"),
        ({"tasks": ["fly"]}, r"tasks \(\['fly'\]\) must be some of \('go to',"),
        ({"tasks": []}, r"tasks \(\[\]\) must be some of"),
        ({"fold": "test"}, r"fold \('test'\) must be one of \['train'\]"),  # a level has no others
        ({**OPEN, "fold": "dev"}, r"fold \('dev'\) must be one of \['train', 'test'\]"),
        ({**OPEN, "room_size": 4, "distractors": 1}, r"distractors \(1\) must be .* most 0"),
        (
            {**OPEN, "room_size": 3, "distractors": 0},
            r"most 0, as room_size \(3, which must be at least 4\)",
        ),
    ],
)
def test_what_there_is_not_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_babyai(**options)
