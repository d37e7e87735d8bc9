"""Text games that others wrote, wrapped."""

import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import stairs
import torch
from torchrl.envs import check_env_specs
from torchrl.envs.utils import step_mdp

from torchrl_glam.envs import TextEnvWrapper
from torchrl_glam.text import decode_text, describe_env


def texts(state, key):
    found = decode_text(state[key])
    return [[text for text in row if text] if isinstance(row, list) else row for row in found]


def play(env, *actions):
    state = env.reset()
    for action in actions:
        step = env.step(state.set("action", torch.as_tensor(action)))
        state = step_mdp(step, exclude_reward=False)
    return state


def test_what_the_game_says_is_what_is_written():
    env = stairs.make(2, seed=0)
    state = env.reset()
    assert decode_text(state["goal"]) == [f"Reach floor {game.goal}" for game in env.games]
    assert texts(state, "actions") == [["up", "down", "wait"]] * 2  # merged, and none is empty
    assert state["action_mask"].tolist() == [[True, True, True, False]] * 2
    state = play(env, [0, 1])
    assert decode_text(state["observation"]) == ["You are on floor 1", "You are on floor -1"]
    assert texts(state, ("hindsight", "goal")) == [["Reach floor 1"], ["Reach floor -1"]]
    assert state["hindsight", "kind"].tolist() == [[0, -1], [0, -1]]


def test_an_episode_ends_at_the_goal_or_out_of_time():
    env = stairs.make(None, seed=1)
    env.reset()
    [game] = env.games
    solution = [0 if game.goal > 0 else 1] * abs(game.goal)
    won, late = [1.0, True, False, True, True], [0.0, False, True, True, False]
    cases = [(None, solution, won), (len(solution), solution, won)]
    cases += [(2, [2, 2], late), (None, [2] * 8, late)]
    for max_steps, actions, ends in cases:
        env.max_steps = max_steps
        env.set_seed(1)
        state = play(env, *actions)
        keys = ("reward", "terminated", "truncated", "done", "success")
        assert [state[key].item() for key in keys] == ends
        assert state["action_mask"].any(), "those of the state before, where the game lists none"
    with pytest.raises(ValueError, match="episode of environment 0 is over: reset it"):
        env.step(state.set("action", torch.tensor(0)))


def test_the_observation_begins_with_the_last_actions():
    env = stairs.make(2, seed=0, history=2)
    start = "You are on floor 0"
    for number, line in enumerate(["", "Last actions: wait\n", "Last actions: wait, wait\n"]):
        state = play(env, *[[2, 2]] * number)
        assert decode_text(state["observation"]) == [line + start] * 2
    state = play(env, [2, 2], [2, 2], [0, 1])
    up, down = (f"Last actions: wait, {way}\nYou are on floor " for way in ("up", "down"))
    assert decode_text(state["observation"]) == [f"{up}1", f"{down}-1"]
    state = env.reset(state.set("_reset", torch.tensor([[True], [False]])))
    assert decode_text(state["observation"]) == [start, f"{down}-1"]
    assert [game.steps for game in env.games] == [0, 3]


def test_the_same_seed_gives_the_same_games_and_another_others():
    def goals(seed=None):
        env = stairs.make(20, seed=seed)
        return [decode_text(env.reset()["goal"]) for _ in range(2)]

    first, second = goals(0)
    assert [first, second] == goals(0) == goals(np.int64(0)) != goals(1)
    assert first != second, "every episode has a seed of its own"
    torch.manual_seed(5)
    unseeded = goals()
    torch.manual_seed(5)
    assert unseeded == goals()


def test_a_state_dict_or_a_pickle_goes_on_where_games_stood():
    def steps_of(env):
        torch.manual_seed(0)  # of the actions
        given = {"tensordict": state.clone(), "auto_reset": False}
        return env.rollout(25, **given, break_when_any_done=False)

    env, other = stairs.make(4, seed=0), stairs.make(4, seed=9)
    before = env.state_dict()
    state = play(env, [2, 2, 2, 2])
    other.load_state_dict(env.state_dict())
    pickled = pickle.loads(pickle.dumps(env))
    draws = torch.stack([other.action_spec.rand() for _ in range(20)], 1)
    assert state["action_mask"].gather(1, draws).all()
    expected = steps_of(env)
    assert (steps_of(other) == expected).all() and (steps_of(pickled) == expected).all()
    env.load_state_dict(before)  # when no episode had begun
    with pytest.raises(ValueError, match="episode of environment 0 is over: reset it"):
        env.step(state.set("action", torch.zeros(4, dtype=torch.int64)))


def test_the_action_that_was_read_is_played_however_the_game_lists_them_now():
    """As a set of strings does in another process, where the game is resumed."""
    ways = ["up", "down"]
    env, other = (stairs.make(1, seed=1, actions=lambda *_: ways) for _ in range(2))
    state, saved = play(env, [0]), env.state_dict()
    ways.reverse()
    other.load_state_dict(saved)
    for each in (env, other):
        step = each.step(state.clone().set("action", torch.tensor([0])))["next"]
        assert texts(step, "observation") == ["You are on floor 2"]
        assert texts(step, "actions") == [["down", "up"]]


def test_games_that_the_step_mask_leaves_out_stand_still():
    env = stairs.make(3, seed=0)
    env.reset()
    up = torch.tensor([int(game.goal < 0) for game in env.games])  # towards the goal
    before, moves = play(env, up), torch.tensor([[True], [False], [True]])
    after = env.step(before.clone().update({"action": up, "_step": moves}))["next"]
    assert [game.steps for game in env.games] == [2, 1, 2]
    for key in ("goal", "observation", "actions", "action_mask", "terminated", "done"):
        assert torch.equal(after[key][1], before[key][1])
    assert not after["reward"][1] and not after["success"][1]
    named = (after["hindsight", "kind"] >= 0).any(1)
    assert named[0] and not named[1]


def test_a_game_that_follows_no_seed_cannot_go_on():
    env = stairs.wrap([stairs.Unruly()])
    env.reset()
    with pytest.raises(ValueError, match=r"game 0 \(Unruly\) played again from its seed stands"):
        env.load_state_dict(env.state_dict())


class Plain:
    """Reset gives an observation alone, step four values, and a method takes the seed."""

    def seed(self, seed):
        self.seeded = seed

    def reset(self):
        return {"text": "dark", "commands": ["wait", "light"]}

    def step(self, action):
        observation = {"text": str(action), "commands": ["wait"]}
        return observation, 0.0, True, {"TimeLimit.truncated": action == 0}


def test_plain_objects_and_the_older_interface():
    sources = {"observation": "text", "actions": "commands", "act": ["wait", "light"].index}
    env = TextEnvWrapper(Plain(), max_actions=2, goal_text="Light", **sources)
    check_env_specs(env)
    state = env.reset()
    assert isinstance(env.games[0].seeded, int)
    assert decode_text(state["goal"]) == "Light" and decode_text(state["observation"]) == "dark"
    for action, ends in ((0, [False, True, True]), (1, [True, False, True])):
        step = env.step(env.reset().set("action", torch.tensor(action)))["next"]
        assert [step[end].item() for end in ("terminated", "truncated", "done")] == ends
        assert decode_text(step["observation"]) == str(action)
    assert "success" not in step.keys() and "hindsight" not in step.keys()


WAYS = [f"walk way {way}" for way in range(6)]
HALL = "You see " + "a long hall " * 3
# It has more to say than there is room.
make_wide = partial(stairs.make, 1, actions=lambda *_: WAYS, observation=lambda *_: HALL)


def test_too_many_actions_are_an_error_or_left_out():
    with pytest.raises(ValueError, match=r"actions\[0\] lists 6 actions, and max_actions is 4"):
        make_wide().reset()
    assert texts(make_wide(overflow="first").reset(), "actions") == [WAYS[:4]]
    drawn = set()
    env = make_wide(overflow="sample", seed=0)
    for _ in range(30):
        state = env.reset()
        (row,) = texts(state, "actions")
        assert len(row) == 4 and row == sorted(row)
        drawn |= set(row)
    assert len(drawn) == 6
    other = make_wide(overflow="sample", seed=1)
    other.load_state_dict(env.state_dict())
    assert other._played[0].actions == row, "the same when it is played again"


def test_longer_texts_are_an_error_or_cut_and_counted():
    size = {"max_actions": 6, "observation_bytes": 20}
    with pytest.raises(ValueError, match=r"observation_bytes \(20\) is too small for 'You see"):
        make_wide(**size).reset()
    for keep, left in (("head", "You see a long hall"), ("tail", "hall a long hall ")):
        env = make_wide(keep=keep, **size)
        with pytest.warns(UserWarning, match=rf"\({keep} kept\), the first one for observation_"):
            state = env.reset()
        assert decode_text(state["observation"]) == [left]
        env.reset()  # warns no more
        assert env.num_cut == {"observation": 2}


def test_actions_that_a_cut_makes_alike_are_refused():
    env = make_wide(max_actions=6, action_bytes=8, keep="head")
    with (
        pytest.warns(match="texts are cut"),
        pytest.raises(ValueError, match=r"actions\[0\] has two .* 'walk way 0' and 'walk way 1'"),
    ):
        env.reset()


TABLE = {"goal": None, "goal_texts": stairs.FLOORS}
JUDGE = partial(stairs.floors)
JUDGE.goals = ["Reach floor 1", "Reach floor 7", "Fly"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overflow": "last"}, r"overflow \('last'\) must be"),
        ({"max_steps": 0}, r"max_steps \(0\) must be at least 1"),
        ({"history": -1}, r"history \(-1\) must be 0, for none, or more"),
        ({"keep": "middle"}, r"keep \('middle'\) must be"),
        ({"max_actions": 0}, r"max_actions \(0\) must be at least 1"),
        ({"goal_kinds": "go"}, r"goal_kinds is the string 'go'"),
        ({"kind_of": lambda goal: 1}, r"kind_of gives 1 for the goal 'Reach floor"),
        ({"actions": "moves"}, r"actions='moves': .* \['goal', 'ways', 'won'\]"),
        ({"actions": lambda *_: 7}, r"actions\[0\] is int, 7: it must be a list of strings"),
        ({"actions": lambda *_: ["go\0 up"]}, r"actions\[0\] holds 'go\\x00 up': leave the zero"),
        ({"success": lambda *_: "no"}, r"success\[0\] is str, 'no': it must be True or False"),
        ({"reward": lambda step: None}, r"reward\[0\] is None: it must be a number"),
        ({"hindsight": lambda steps: "Win"}, r"hindsight\[0\] is str, 'Win': it must be a list"),
        ({"hindsight": lambda steps: [""]}, r"hindsight\[0, 0\] is empty"),
        ({"hindsight": lambda steps: [*"abc"]}, r"hindsight\[0\] has 3 .* max_hindsight is 2"),
        (
            {**TABLE, "goal": "goal"},
            r"goal \('goal'\), goal_text \(None\) and goal_texts .*: give one of",
        ),
        ({"goal": None}, r"goal \(None\), goal_text \(None\) and goal_texts \(None\)"),
        (
            {**TABLE, "goal_texts": ["a", "a"]},
            r"goal_texts \(\['a', 'a'\]\) must be .* none empty or twice",
        ),
        ({**TABLE, "goal_texts": []}, r"goal_texts \(\[\]\) must be a list of goals"),
        ({**TABLE, "goal_sampler": lambda *_: torch.tensor([4])}, r"return 1 goal id in \[0, 4\)"),
        ({"goal_sampler": lambda *_: None}, "goal_sampler needs goal_texts, the table of goals"),
        (TABLE, r"reset of game 0 \(Stairs\) takes no argument goal"),
        ({**TABLE, "hindsight": JUDGE}, "names 2 goals that are not in goal_texts, such as 'Fly'"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        stairs.make(1, **settings).rollout(1)


INFO = {"goal": "Leave", "ways": ["up"], "won": False}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (("Hall", 0.0, False), r"step of game 0 \(Stairs\) returns \(str, float, bool\)"),
        (None, r"returns \(NoneType\): it must return"),
        (("Hall", 0.0, False, False, None), r"bool, NoneType\): .* where info is a mapping"),
        (("Hall", 0.0, np.zeros(2), False, INFO), r"terminated\[0\] is ndarray, array"),
        (("Hall", "high", False, False, INFO), r"reward\[0\] is 'high': it must be a number"),
        (("Hall", float("nan"), False, False, INFO), r"reward\[0\] is nan: it must be a finite"),
        (("Hall", 1e300, False, False, INFO), r"reward\[0\] is 1e\+300: .* float32 holds"),
        ((7, 0.0, False, False, INFO), r"observation\[0\] is int, 7: it must be a string"),
        (("Hall", 0.0, False, False, INFO | {"ways": []}), r"actions\[0\] is empty: .* 'Hall'"),
    ],
)
def test_a_step_that_does_not_fit_is_named(result, message):
    game = stairs.Stairs()
    game.step = lambda action: result
    with pytest.raises(ValueError, match=message):
        stairs.wrap([game]).rollout(1)


GAME = stairs.Stairs()
MUTE = SimpleNamespace(reset=GAME.reset)


@pytest.mark.parametrize(
    ("games", "message"),
    [
        ([], "games is empty"),
        ([None], r"games\[0\] \(NoneType\) has no method reset"),
        ([MUTE], r"games\[0\] \(SimpleNamespace\) has no method step: a game must have"),
        ([GAME, stairs.Stairs(), GAME], r"games\[2\] is games\[0\], and one game cannot play two"),
    ],
)
def test_what_is_no_game_is_named(games, message):
    with pytest.raises(ValueError, match=message):
        stairs.wrap(games)


def test_what_is_not_of_these_games_is_refused():
    env = stairs.make(2)
    with pytest.raises(ValueError, match="the state has 3 games, expected 2"):
        env.load_state_dict(stairs.make(3).state_dict())
    given = {"goal": ["Go"] * 2, "observation": ["Here"] * 2, "actions": [["up"]] * 2}
    with pytest.raises(ValueError, match="reward has 1 values, expected 2"):
        env.layout.pack(**given, reward=[1.0])
    with pytest.raises(ValueError, match="observation is 7: it must be"):
        env.layout.pack(**given | {"observation": ["Here", 7]})


def test_a_refused_action_moves_no_game():
    env = stairs.make(2, seed=0)
    state = env.reset()
    message = r"action\[1\] = 3 is not admissible, .* 0: up, 1: down"
    with pytest.raises(ValueError, match=message):
        env.step(state.clone().set("action", torch.tensor([0, 3])))
    assert [game.floor for game in env.games] == [0, 0]
    env.step(state.set("action", torch.tensor([0, 1])))
    assert [game.floor for game in env.games] == [1, -1]


@pytest.mark.parametrize("number", [None, 3])
def test_games_pursue_goals_of_a_table(number):
    """Uniformly, by the stream of each game; and their ids are written with the texts.

    There may be more kinds of them than a byte counts, and rewards of one's own.
    """
    kinds = {"goal_kinds": [*map(str, range(300))], "kind_of": lambda g: 299 * stairs.is_far(g)}
    own = {"reward": lambda step: step.info["won"] - 0.5}
    env = stairs.make_chosen(number, seed=0, **kinds, **own)
    check_env_specs(env, break_when_any_done="both")
    described = describe_env(env)
    assert described.goal_texts == tuple(stairs.FLOORS)
    assert described.goal_kind_ids == [0, 0, 299, 299]
    assert described.goal_kind_prior == [2, *[0] * 298, 2]
    env.set_seed(1)
    steps = env.rollout(60, break_when_any_done=False)
    ids, goals = steps["goal_id"].flatten(), texts(steps.reshape(-1), "goal")
    assert goals == [stairs.FLOORS[i] for i in ids] and set(ids.tolist()) == {0, 1, 2, 3}
    named = steps["next", "hindsight", "goal_id"]
    on = [int(text.split()[-1]) for text in texts(steps["next"].reshape(-1), "observation")]
    places = {-1: 0, 1: 1, -2: 2, 2: 3}  # floor 0, and those beyond, are in no table
    assert named[..., 0].flatten().tolist() == [places.get(floor, -1) for floor in on]
    assert (named[..., 1] == -1).all()
    assert torch.equal(steps["goal_kind"], 299 * (steps["goal_id"] > 1))
    assert steps["next", "hindsight", "kind"].max() == 299
    won = named[..., :1] == steps["goal_id"].unsqueeze(-1)
    assert torch.equal(steps["next", "success"], won)
    assert torch.equal(steps["next", "reward"], won.float() - 0.5)


def test_games_pursue_what_a_sampler_draws_and_go_on_with_it():
    asked = []
    draw = lambda generator, n: asked.append((generator, n)) or torch.tensor([len(asked) % 4])  # noqa: E731
    env = stairs.make_chosen(2, seed=0, goal_sampler=draw)
    assert describe_env(env).goal_kind_prior is None
    state = env.reset()
    assert state["goal_id"].tolist() == [1, 2] and [n for _, n in asked] == [1, 1]
    state = env.reset(state.set("_reset", torch.tensor([[False], [True]])))
    assert state["goal_id"].tolist() == [1, 3]
    other = stairs.make_chosen(2, seed=5, goal_sampler=draw)
    other.load_state_dict(env.state_dict())
    assert len(asked) == 3
    kept = other.step(state.set("action", torch.tensor([0, 1])))["next"]
    assert kept["goal_id"].tolist() == [1, 3]


@pytest.mark.parametrize("seen", [{"at": 0}, [0], np.zeros(1)])
def test_a_game_may_return_the_same_objects_again(seen):
    """And actions as an array; a step may name no goal."""
    at, paths = "at" if isinstance(seen, dict) else 0, []
    info = {"at": 0, "bag": []}

    def step(action):
        seen[at], info["at"] = seen[at] + 1, info["at"] + 1
        info["bag"].append("coin")
        return seen, 0.0, False, False, info

    env = TextEnvWrapper(
        [SimpleNamespace(reset=lambda: (seen, info), step=step)],
        max_actions=1,
        actions=lambda *_: np.array(["go"]),
        observation=lambda observation, info: str(observation[at]),
        goal_text="Go",
        hindsight=lambda steps: paths.append(
            [(s.observation[at], s.info["at"], len(s.info["bag"])) for s in steps]
        ),
    )
    assert texts(play(env, [0], [0]), ("hindsight", "goal")) == [[]]
    assert paths[-1] == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
