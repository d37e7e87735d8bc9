"""TextWorld's challenges as text environments."""

import pytest

from torchrl_glam.envs import check_text_env
from torchrl_glam.text import decode_text

from .playing import choose, listed

textworld = pytest.importorskip("textworld", reason="pip install torchrl_glam[textworld]")

from torchrl_glam.envs.games.textworld import make_textworld  # noqa: E402


@pytest.mark.slow
def test_the_coin_is_found_by_walking_on():
    env = make_textworld(num_envs=1, num_games=2, settings={"level": 2}, seed=0)
    check_text_env(env, steps=12)
    state = env.reset()
    assert decode_text(state["goal"]) == ["Take the coin"]
    [way] = [text for text in listed(state) if text.startswith("go ")]
    step, state = choose(env, state, way)
    (named,) = decode_text(step["hindsight", "goal"])
    room = decode_text(step["observation"])[0].split("\n")[0]
    assert named[0] == f"Find the {room.lower()}"
    assert not step["success"].any() and not step["done"].any()
    assert not any(text.startswith(("examine", "look", "inventory")) for text in listed(state))
    step, _ = choose(env, state, "take coin")
    assert step["success"].all() and step["terminated"].all() and step["reward"].item() == 1
    assert decode_text(step["hindsight", "goal"])[0][0] == "Take the coin"


@pytest.mark.slow
def test_a_meal_is_named_when_it_is_taken_prepared_and_eaten():
    env = make_textworld("cooking", num_games=1, first_game=1)
    state = env.reset()
    [goal] = decode_text(state["goal"])
    meal = goal.removeprefix("Cook and eat a meal of ")
    assert goal != meal and "prepare meal" not in listed(state)
    takes = {text[5:].split(" from ")[0]: text for text in listed(state) if text[:5] == "take "}
    [thing] = [thing for thing in takes if thing in meal]
    reached = {takes[thing]: f"Take the {thing}", "prepare meal": f"Prepare a meal of {meal}"}
    for action, named in reached.items():
        step, state = choose(env, state, action)
        assert decode_text(step["hindsight", "goal"])[0][0] == named
        assert not step["success"].any()
    step, _ = choose(env, state, "eat meal")
    assert step["success"].all() and step["reward"].item() == 1


def test_a_game_is_made_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compile_game, made = textworld.generator.compile_game, []

    def compile_or_fail(game, options):
        if options.path.startswith(str(tmp_path)):  # coins are compiled elsewhere, too
            made.append(options.path)
            if len(made) == 1:
                raise KeyboardInterrupt  # leaves nothing behind that looks like a game
        return compile_game(game, options)

    monkeypatch.setattr(textworld.generator, "compile_game", compile_or_fail)
    with pytest.raises(KeyboardInterrupt):
        make_textworld(num_games=1, settings={"level": 1})
    first = make_textworld(num_games=1, settings={"level": 1}).reset()
    again = make_textworld(num_games=1, settings={"level": 1}).reset()
    assert len(made) == 2 and decode_text(again["actions"]) == decode_text(first["actions"])
    make_textworld(num_games=1, settings={"level": 2})
    make_textworld(num_games=1, first_game=1, settings={"level": 1})
    assert len(made) == 4
    assert len(list((tmp_path / "torchrl_glam" / "textworld").iterdir())) == 3


def test_what_is_refused_is_named():
    with pytest.raises(ValueError, match=r"challenge \('chess'\) must be one of \['coin_coll"):
        make_textworld("chess")
    with pytest.raises(ValueError, match=r"num_games \(0\) must be at least 1"):
        make_textworld(num_games=0)
    for challenge, settings, message in (
        ("coin_collector", {"levl": 1}, r"settings \('levl'\) must be one of \['level'\]"),
        ("cooking", {"split": "dev"}, r"settings\['split'\] \('dev'\) must be one of \['train'"),
        ("cooking", {"recipe": 9}, r"settings .*'recipe': 9.* makes no game: recipe must"),
        ("coin_collector", {"level": "3"}, r"settings .*'level': '3'.* makes no game: '<'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_textworld(challenge, num_games=1, settings=settings)
