"""Games in z-machine files: those that TextWorld makes, which Jericho plays as any other."""

import shutil
from hashlib import md5
from types import SimpleNamespace

import pytest

from torchrl_glam.envs import check_text_env
from torchrl_glam.text import decode_text

from .playing import choose, listed

pytest.importorskip("jericho", reason="pip install torchrl_glam[jericho]")

from jericho.defines import BINDINGS_DICT  # noqa: E402

from torchrl_glam.envs.games.jericho import kind_of, make_jericho  # noqa: E402
from torchrl_glam.envs.games.zmachine import Story, room_name  # noqa: E402


@pytest.fixture(scope="module")
def coins(tmp_path_factory):
    """A game of two rooms, the second one with a coin, by a name that Jericho knows."""
    textworld = pytest.importorskip("textworld", reason="pip install torchrl_glam[textworld]")
    from textworld.challenges.tw_coin_collector import coin_collector

    options = textworld.GameOptions()
    options.seeds, options.path = 1, str(tmp_path_factory.mktemp("games") / "tw-coins.z8")
    textworld.generator.compile_game(coin_collector.make({"level": 2}, options), options)
    return tmp_path_factory.getbasetemp() / options.path


@pytest.fixture(scope="module")
def nameless(coins):
    """The same game under a name that tells Jericho nothing."""
    (coins.parent / "other").mkdir()
    return shutil.copy(coins, coins.parent / "other" / "nameless.z8")


@pytest.mark.slow
def test_games_that_textworld_makes_on_the_spot(coins):
    """The same game by both players: room and goal are alike, and so is the way to the coin."""
    from torchrl_glam.envs.games.textworld import make_textworld

    game = {"num_games": 1, "first_game": 1, "settings": {"level": 2}}
    for player, south in (("textworld", "go south"), ("jericho", "south")):
        env = make_textworld(**game, player=player, seed=0)
        state = env.reset()
        assert decode_text(state["goal"]) == ["Take the coin"] and listed(state) == [south]
        assert decode_text(state["observation"])[0].split("\n")[0].strip("-= ") == "Studio"
        for text in (south, "take coin"):
            step, state = choose(env, state, text)
        assert step["success"].all() and step["terminated"].all()
        env.close()
    with pytest.raises(ValueError, match=r"player \('me'\) must be"):
        make_textworld(player="me")


@pytest.mark.slow
def test_what_is_tried_is_what_changes_the_game(coins):
    env = make_jericho(coins, seed=0)
    check_text_env(env, steps=8)
    state = env.reset()
    assert decode_text(state["goal"]) == ["Get the highest score in tw-coins"]
    room, *_, carried = decode_text(state["observation"])[0].split("\n")
    assert (room, carried) == ("-= Studio =-", "You are carrying nothing.")
    assert listed(state) == ["south"]
    step, state = choose(env, state, "south")
    assert listed(state) == ["north", "take coin"] and not step["done"].any()
    assert decode_text(step["hindsight", "goal"])[0][:2] == ["Find the spare room", ""]
    step, _ = choose(env, state, "take coin")
    assert step["success"].all() and step["terminated"].all() and step["reward"].item() == 1
    named = decode_text(step["hindsight", "goal"])[0]
    assert named[:2] == ["Reach a score of 1", "Get the highest score in tw-coins"]
    assert decode_text(step["observation"])[0].startswith("You pick up the coin from the ground.")
    env.close()


@pytest.mark.slow
def test_a_game_that_jericho_does_not_know_is_played_without_a_score(nameless):
    env = make_jericho(nameless, goal="Take the coin", seed=0)
    check_text_env(env, steps=4)
    step, state = choose(env, env.reset(), "south")
    last = decode_text(step["observation"])[0].split("\n")[-1]
    assert last == "You are carrying nothing.", "no prompt, and no line of the screen's top"
    step, _ = choose(env, state, "take coin")
    # "*** The End ***" does not say who won
    assert step["terminated"].all() and not step["success"].any() and not step["reward"].any()
    env.close()
    with pytest.raises(ValueError, match=r'cannot read the score of .*nameless.z8: give "success"'):
        make_jericho(nameless, reward="score").reset()


@pytest.mark.slow
def test_score_and_commands_of_ones_own(coins, nameless):
    env = make_jericho(coins, reward="score", commands=["south", "take OBJ", "eat OBJ"], seed=0)
    step, state = choose(env, env.reset(), "south")
    assert listed(state) == ["take coin"] and step["reward"].item() == 0
    assert choose(env, state, "take coin")[0]["reward"].item() == 1
    env.close()
    with pytest.raises(ValueError, match=r"no command does .*tw-coins.z8 begins, .*: give others"):
        make_jericho(coins, commands=["north", "eat OBJ"]).reset()
    # the seeds of episodes choose among files
    env = make_jericho([coins.parent, nameless], num_envs=8, seed=0)
    named = {goal.split()[-1] for goal in decode_text(env.reset()["goal"])}
    assert named == {"tw-coins", "nameless"}
    env.close()


@pytest.mark.slow
def test_commands_that_jericho_knows_of_a_game(coins, monkeypatch):
    grammar = "take/get OBJ;put OBJ in/inside OBJ;quit"
    known = {"name": "coins", "grammar": grammar, "max_word_length": 9}
    monkeypatch.setitem(BINDINGS_DICT, md5(coins.read_bytes()).hexdigest(), known)
    story = Story(coins)
    assert story.commands[:2] == ["take OBJ", "put OBJ in OBJ"] and "quit" not in story.commands
    story.begin(0)
    assert story.valid(*story.look()) == ["south"]


def says(reply):
    """A story of unknown score that replies so."""
    story = object.__new__(Story)
    game = {"step": lambda command: (reply, 0, False, {"score": 0}), "victory": lambda: False}
    story.game, story.full_score = SimpleNamespace(**game, is_fully_supported=False), 0
    return story


def test_how_a_story_of_unknown_score_ends():
    question = "Would you like to RESTART, RESTORE a saved game or QUIT?"
    ask = f"\n\n{question}\n\n> Yard 0/9"
    assert says(f"    *** You have won ***{ask}").do("wait")[1:] == (True, True)
    died = ["Oh no.", "**** You have died ****", question]
    assert says(f"Oh no.\n  ****  You have died  ****{ask}").do("wait") == (died, True, False)
    assert says("The sign says *** Beware ***\n\n>").do("wait")[1:] == (False, False)


def test_names_of_rooms_and_kinds_of_goals():
    assert room_name(["-= Spare Room =-", "It is empty."]) == "Spare Room"
    assert room_name(["West of House (in the tree)"]) == "West of House"
    assert room_name(["It is pitch dark."]) == room_name([]) == ""
    goals = ["Find the attic", "Take the lamp", "Reach a score of 5", "Get the highest score in z"]
    assert [*map(kind_of, goals)] == [0, 1, 2, 3]


def story_file(**words):
    """A file of 100 bytes with the header of a z-machine story, version 5."""
    places = {"dictionary": 8, "objects": 10, "globals": 12, "static": 14, "size": 26, "sum": 28}
    data = bytearray([5, *[0] * 63, *range(36)])
    for name, value in {**dict.fromkeys(list(places)[:4], 64), "size": 25, **words}.items():
        data[places[name] : places[name] + 2] = value.to_bytes(2, "big")
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no z-machine file: its first byte"),
        (b"FORM" + bytes(96), "is no z-machine file: its first byte"),
        (story_file()[:99], "is cut off: 99 bytes of 100"),
        (story_file(objects=100), "is broken: its header names places outside of the file"),
        (story_file(static=63), "is broken: its header names places outside of the file"),
        (story_file(sum=sum(range(36)) + 1), "is broken: its bytes do not add up"),
    ],
    ids=["empty", "blorb", "cut", "table", "memory", "checksum"],
)
def test_files_that_are_no_whole_story_are_refused(tmp_path, data, message):
    (tmp_path / "game.z5").write_bytes(data)
    with pytest.raises(ValueError, match=rf"game \(.*game.z5\) {message}"):
        make_jericho(tmp_path)


def test_other_arguments_that_are_refused(tmp_path):
    (tmp_path / "whole.z5").write_bytes(story_file(sum=sum(range(36))))
    assert make_jericho(tmp_path, num_envs=2).batch_size == (2,), "files are opened on a reset"
    with pytest.raises(ValueError, match=r"reward \('points'\) must be"):
        make_jericho(tmp_path, reward="points")
    for game, message in (
        (tmp_path / "zork1.z5", r"zork1.z5\) does not exist"),
        ([tmp_path / "whole.z5", "no.z5"], r"game \(no.z5\) does not exist"),
        ([], "game is empty"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            make_jericho(game)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty\) holds no file \*.z1 to \*.z8"):
        make_jericho(tmp_path / "empty")
