"""ALFWorld's games, made ones, played through its own engine."""

import json
import re
import sys

import pytest

from torchrl_glam.envs import check_text_env
from torchrl_glam.text import decode_text

from .playing import choose, listed

pytest.importorskip("alfworld", reason="pip install torchrl_glam[alfworld]")
pytest.importorskip("fast_downward", reason="pip install torchrl_glam[alfworld]")

import textworld  # noqa: E402
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredTWEnv  # noqa: E402
from alfworld.gen.constants import OBJECTS  # noqa: E402
from alfworld.gen.goal_library import gdict  # noqa: E402
from textworld.envs import PddlEnv  # noqa: E402

from torchrl_glam.envs.games.alfworld import GOAL_KINDS, ALFWorldGame, make_alfworld  # noqa: E402
from torchrl_glam.envs.games.alfworld_games import TASKS, make_game  # noqa: E402

PICK, LOOK, CLEAN, HEAT, COOL, TWO = TASKS
# Tasks by what their wordings are, written down again.
WORDINGS = [
    (PICK, r"put a (\w+) in (\w+)|put some (\w+) on (\w+)"),
    (LOOK, r"look at (\w+) under the (\w+)|examine the (\w+) with the (\w+)"),
    (CLEAN, r"put a clean (\w+) in (\w+)|clean some (\w+) and put it in (\w+)"),
    (HEAT, r"put a hot (\w+) in (\w+)|heat some (\w+) and put it in (\w+)"),
    (COOL, r"put a cool (\w+) in (\w+)|cool some (\w+) and put it in (\w+)"),
    (TWO, r"put two (\w+) in (\w+)|find two (\w+) and put them in (\w+)"),
]


def read(goal):
    """Task, thing and place of a goal."""
    [found] = [(t, match) for t, wording in WORDINGS if (match := re.fullmatch(wording, goal))]
    return found[0], *filter(None, found[1].groups())


def pursuing(game, task, thing, place):
    """The same game with another goal, as ALFWorld writes it for its planner."""
    names = {name.lower(): name for name in OBJECTS}
    words = {"obj": names[thing], "recep": names[place], "toggle": names[place]}
    goal = gdict[task]["pddl"].format(**words).replace("#", "-")
    return {**game, "pddl_problem": game["pddl_problem"].split("(:goal")[0] + goal}


def plan_of(game):
    """The shortest way to win that TextWorld's planner finds."""
    engine = AlfredDemangler(PddlEnv(textworld.EnvInfos(extras=["walkthrough"])))
    engine.load(game)
    return engine.reset()["extra.walkthrough"]


def wins_after(game, actions):
    """After which of the actions the game is won, as the engine judges; None if after none."""
    engine = AlfredDemangler(PddlEnv(textworld.EnvInfos()))
    engine.load(game)
    assert not engine.reset()["won"]
    won = [engine.step(action)[0]["won"] for action in actions]
    return won.index(True) if True in won else None


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_walkthrough_wins(task):
    plan = plan_of(make_game("train", task, 0))
    env = make_alfworld("made", tasks=[task], num_games=1, seed=0)
    state = env.reset()
    [goal] = decode_text(state["goal"])
    assert read(goal)[0] == task == GOAL_KINDS[state["goal_kind"]]
    assert "Your task" not in decode_text(state["observation"])[0]
    for number, action in enumerate(plan, 1):
        useless = ("look", "inventory", "examine", "help")
        assert not any(text.startswith(useless) for text in listed(state))
        step, state = choose(env, state, action)
        won = number == len(plan)
        assert step["success"].item() == step["terminated"].item() == won
        assert step["reward"].item() == won
        assert (goal in decode_text(step["hindsight", "goal"])[0]) == won


def named_by(game, actions):
    """When each goal is first named in hindsight, by what it is about."""
    played, named = ALFWorldGame([game]), {}
    _, info = played.reset(seed=0)
    for number, action in enumerate(actions):
        assert action in info["actions"]
        _, _, _, _, info = played.step(action)
        for goal in info["reached"]:
            named.setdefault(read(goal), number)
    return named


@pytest.mark.slow
def test_hindsight_names_what_the_engine_calls_won():
    """Whatever a game pursues, each other goal is named when the same game with it is won."""
    game, about = make_game("train", TWO, 4), ("mug", "countertop")
    asked = {task: pursuing(game, task, *about) for task in TASKS if task != LOOK}
    plans = {task: plan_of(other) for task, other in asked.items()}
    washed, put = plans[CLEAN][:-2], plans[CLEAN][-2:]
    mug = " ".join(put[-1].split()[1:3])
    cooled = ["go to fridge 1", f"cool {mug} with fridge 1"]
    heated = ["go to microwave 1", f"heat {mug} with microwave 1"]
    plans["all"] = washed + cooled + heated + put
    named = {task: named_by(game, plan) for task, plan in plans.items()}
    for task, plan in plans.items():
        assert {goal[1:] for goal in named[task]} == {about}
        assert max(named[task].values()) == len(plan) - 1
        assert task == "all" or named[task][(task, *about)] == len(plan) - 1
    for play in (TWO, "all"):
        for task, other in asked.items():
            assert named[play].get((task, *about)) == wins_after(other, plans[play])
    # what was heated last is no longer cool
    assert {goal[0] for goal in named["all"]} == {PICK, CLEAN, HEAT}


@pytest.mark.slow
def test_what_is_looked_at_under_a_lamp_is_named():
    game = make_game("train", LOOK, 0)
    plan = plan_of(game)
    lit = ["go to desk 1", "use desklamp 1", *plan[:-1]]  # the lamp is on before the thing is taken
    for actions in (plan, lit):
        assert named_by(game, actions) == {(LOOK, "keychain", "desklamp"): len(actions) - 1}
        assert wins_after(game, actions) == len(actions) - 1


@pytest.mark.slow
def test_random_play_keeps_the_contract_and_the_command_line():
    before = [*sys.argv]
    check_text_env(make_alfworld("made", num_envs=2, num_games=3, seed=0), steps=3)
    assert sys.argv == before, "the planner reads its own"


def test_the_state_of_what_is_carried_is_told():
    game = make_game("train", CLEAN, 5)
    played = ALFWorldGame([game])
    start, _ = played.reset(seed=7)
    assert re.fullmatch("(?s)You are in the middle.*You are carrying: nothing.", start)
    told = [played.step(action)[0].split("\n")[-1] for action in plan_of(game)[:-1]]
    said = ["nothing", "a tomato 1", "a clean tomato 1"]
    assert list(dict.fromkeys(told)) == [f"You are carrying: {words}." for words in said]


def test_made_games_differ_and_those_held_out_have_other_rooms():
    def rooms(fold):
        problems = [make_game(fold, PICK, seed)["pddl_problem"] for seed in range(100)]
        assert len({*problems}) > 95
        return {frozenset(re.findall(r"(\w+) - receptacle\n", problem)) for problem in problems}

    assert make_game("train", HEAT, 1) == make_game("train", HEAT, 1)
    assert rooms("valid_seen") & rooms("train")
    assert not rooms("valid_unseen") & rooms("train")


def write(folder, name, game, task=HEAT):
    trial = folder / name / "trial_T2019"
    trial.mkdir(parents=True)
    (trial / "traj_data.json").write_text(json.dumps({"task_type": task}))
    (trial / "game.tw-pddl").write_text(game if isinstance(game, str) else json.dumps(game))
    return str(trial / "game.tw-pddl")


def test_games_are_found_as_alfworld_finds_them(tmp_path, monkeypatch):
    folder = tmp_path / "json_2.1.1" / "valid_seen"
    heated = write(folder, f"{HEAT}-Egg-None-Fridge-7", make_game("train", HEAT, 0))
    placed = write(folder, f"{PICK}-Egg-None-Fridge-7", make_game("train", PICK, 0), PICK)
    write(folder, f"{HEAT}-EggSliced-None-Fridge-7", make_game("train", HEAT, 0))
    write(folder, f"{HEAT}-Egg-None-Fridge-9", {**make_game("train", HEAT, 0), "solvable": False})
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    env = make_alfworld(fold="valid_seen", tasks=[HEAT])
    assert env.games[0].games == [heated]
    assert decode_text(env.reset()["goal"]) == ["heat some egg and put it in fridge"]
    assert {*make_alfworld(fold="valid_seen").games[0].games} == {heated, placed}
    assert len(make_alfworld(tmp_path, fold="valid_seen", num_games=1).games[0].games) == 1
    config = {
        "env": {"goal_desc_human_anns_prob": 0, "task_types": range(1, 7)},
        "dataset": {"eval_id_data_path": str(folder), "num_eval_games": 0},
    }
    theirs = AlfredTWEnv(config, train_eval="eval_in_distribution")
    assert {*theirs.game_files} == {heated, placed}


def test_what_is_refused_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"fold \('dev'\) must be one of \['train', 'valid_seen'"):
        make_alfworld("made", fold="dev")
    with pytest.raises(ValueError, match=r"tasks \('cook'\) must be one of \['pick_and_place_sim"):
        make_alfworld("made", tasks=[PICK, "cook"])
    with pytest.raises(ValueError, match=r"num_games \(0\) must be at least 1"):
        make_alfworld("made", num_games=0)
    says = r"json_2.1.1.train has no game.tw-pddl .* alfworld-download .* data=made needs none"
    with pytest.raises(FileNotFoundError, match=says):
        make_alfworld(tmp_path)
    folder = tmp_path / "json_2.1.1"
    write(folder / "train", f"{HEAT}-Egg-None-Fridge-7", '{"pddl_domain": ""}')
    with pytest.raises(ValueError, match=r"game.tw-pddl is no game of ALFWorld: KeyError"):
        make_alfworld(tmp_path, tasks=[HEAT])
    write(folder / "valid_seen", f"{HEAT}-Egg-None-Fridge-7", "(define")
    with pytest.raises(ValueError, match=r"game.tw-pddl is no game of ALFWorld: JSONDecodeError"):
        make_alfworld(tmp_path, fold="valid_seen")
    game = {**make_game("train", HEAT, 0), "pddl_problem": "(define (problem made)"}
    write(folder / "valid_unseen", f"{HEAT}-Egg-None-Fridge-7", game)
    with pytest.raises(ValueError, match=r"ALFWorld cannot play .*game.tw-pddl"):
        make_alfworld(tmp_path, fold="valid_unseen").reset()
