"""Text games that others wrote, wrapped."""

import pickle
from functools import partial

import numpy as np
import pytest
import stairs
import torch
from tensordict import TensorDict
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
        state = step_mdp(
            env.step(state.set("action", torch.as_tensor(action))), exclude_reward=False
        )
    return state


def test_what_the_game_says_is_what_is_written():
    env = stairs.make(2, seed=0)
    state = env.reset()
    goals = [f"Reach floor {game.goal}" for game in env.games]
    assert decode_text(state["goal"]) == goals
    assert texts(state, "actions") == [["up", "down", "wait"]] * 2  # merged, and none is empty
    assert state["action_mask"].tolist() == [[True, True, True, False]] * 2
    assert state["action_mask"].dtype == torch.bool
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
    for max_steps, actions, ends in (
        *((None, solution, won), (len(solution), solution, won)),
        *((2, [2, 2], late), (None, [2] * 8, late)),
    ):
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
    assert decode_text(env.reset()["observation"]) == [start] * 2
    one, two = f"Last actions: wait\n{start}", f"Last actions: wait, wait\n{start}"
    assert decode_text(play(env, [2, 2])["observation"]) == [one] * 2
    assert decode_text(play(env, [2, 2], [2, 2])["observation"]) == [two] * 2
    state = play(env, [2, 2], [2, 2], [0, 1])
    last = [text.split("\n")[0] for text in decode_text(state["observation"])]
    assert last == ["Last actions: wait, up", "Last actions: wait, down"]
    state = env.reset(state.set("_reset", torch.tensor([[True], [False]])))
    assert decode_text(state["observation"])[0] == start
    assert decode_text(state["observation"])[1].startswith("Last actions: wait, down\n")


def test_the_same_seed_gives_the_same_games_and_another_others():
    def goals(seed):
        env = stairs.make(20)
        env.set_seed(seed)
        return [decode_text(env.reset()["goal"]) for _ in range(2)]

    first, again = goals(0), goals(0)
    assert first == again != goals(1)
    assert first[0] != first[1], "every episode has a seed of its own"
    torch.manual_seed(5)
    env = stairs.make(20)
    torch.manual_seed(5)
    assert (env.reset() == stairs.make(20).reset()).all()


def test_a_partial_reset_leaves_the_others_where_they_are():
    env = stairs.make(3, seed=0)
    reset = torch.tensor([[False], [True], [False]])
    env.reset(TensorDict({"_reset": reset}, [3]))  # the first begins every game
    state = env.reset(play(env, [0, 1, 2]).set("_reset", reset))
    assert decode_text(state["observation"]) == [f"You are on floor {floor}" for floor in (1, 0, 0)]
    assert [game.steps for game in env.games] == [1, 0, 1]


def test_a_state_dict_goes_on_where_games_stood():
    def steps_of(env, state):
        seen = []
        for _ in range(25):
            step = env.step(state.set("action", state["action_mask"].int().argmax(-1)))["next"]
            seen.append(step)
            state = step_mdp(step.empty().set("next", step))
            if step["done"].any():
                state = env.reset(state.set("_reset", step["done"]))
        return torch.stack(seen)

    env = stairs.make(4, seed=0)
    state = play(env, [2, 2, 2, 2])
    saved, carried = env.state_dict(), state.clone()
    expected = steps_of(env, state)
    other = stairs.make(4, seed=9)
    other.load_state_dict(saved)
    draws = torch.stack([other.action_spec.rand() for _ in range(20)], 1)
    assert carried["action_mask"].gather(1, draws).all()
    assert (steps_of(other, carried) == expected).all()


def test_a_state_from_before_the_first_episode_ends_those_that_are_played():
    env = stairs.make(2, seed=0)
    before = env.state_dict()
    state = play(env, [2, 2])
    env.load_state_dict(before)
    with pytest.raises(ValueError, match="episode of environment 0 is over: reset it"):
        env.step(state.set("action", torch.tensor([2, 2])))


class Turned(stairs.Stairs):
    """Lists its actions in another order, as a set of strings does in another process."""

    def look(self):
        observation, info = super().look()
        return observation, info | {"ways": info["ways"][::-1]}


def test_a_resumed_game_takes_the_action_that_was_read_however_it_lists_them():
    env, other = stairs.make(1, seed=0), stairs.wrap([Turned()], seed=0)
    assert texts(env.reset(), "actions") != texts(other.reset(), "actions")
    state = play(env, [2], [2])  # waits
    other.load_state_dict(env.state_dict())
    for each in (env, other):
        step = each.step(state.clone().set("action", torch.tensor([0])))["next"]
        assert texts(step, "observation") == ["You are on floor 1"]


def test_the_action_that_was_read_is_played_whatever_becomes_of_the_games_list():
    ways = ["up", "down"]
    env = stairs.make(1, seed=0, actions=lambda observation, info: ways)
    state = env.reset()
    ways.reverse()
    step = env.step(state.set("action", torch.tensor([0])))["next"]
    assert texts(step, "observation") == ["You are on floor 1"]
    assert texts(step, "actions") == [["down", "up"]]


def test_an_environment_of_games_is_pickled_with_its_episodes():
    env = stairs.make(2, seed=0)
    state = play(env, [2, 2])
    step = [
        each.step(state.clone().set("action", torch.tensor([0, 1])))["next"]
        for each in (pickle.loads(pickle.dumps(env)), env)
    ]
    assert (step[0] == step[1]).all()


def test_games_that_the_step_mask_leaves_out_stand_still():
    env = stairs.make(3, seed=0)
    env.reset()
    up = [int(game.goal < 0) for game in env.games]  # towards the goal
    before = play(env, up)
    moves = torch.tensor([[True], [False], [True]])
    state = before.clone().set("action", torch.tensor(up)).set("_step", moves)
    after = env.step(state)["next"]
    assert [game.steps for game in env.games] == [2, 1, 2]
    for key in ("goal", "observation", "actions", "action_mask", "terminated", "done"):
        assert torch.equal(after[key][1], before[key][1])
    assert not after["reward"][1] and not after["success"][1]
    named = (after["hindsight", "kind"] >= 0).any(1)
    assert named[0] and not named[1]


def test_rewards_of_ones_own():
    env = stairs.make(1, seed=1, reward=lambda step: step.info["won"] - 0.5)
    steps = env.rollout(20, break_when_any_done=False)["next"]
    assert torch.equal(steps["reward"], steps["success"].float() - 0.5)


def test_a_game_that_follows_no_seed_cannot_go_on():
    env = stairs.wrap([stairs.Unruly()])
    env.reset()
    with pytest.raises(ValueError, match=r"game 0 \(Unruly\) played again from its seed stands"):
        env.load_state_dict(env.state_dict())


class Plain:
    """Reset gives an observation alone, step four values, and a method takes the seed."""

    seeded = None

    def seed(self, seed):
        self.seeded = seed

    def reset(self):
        return {"text": "dark", "commands": ["wait", "light"]}

    def step(self, action):
        observation = {"text": str(action), "commands": ["wait"]}
        return observation, 0.0, True, {"TimeLimit.truncated": action == 0}


def test_plain_objects_and_the_older_interface():
    env = TextEnvWrapper(
        Plain(),
        max_actions=2,
        observation="text",
        actions="commands",
        goal_text="Light",
        act=["wait", "light"].index,
    )
    check_env_specs(env)
    state = env.reset()
    assert env.games[0].seeded is not None
    assert decode_text(state["goal"]) == "Light" and decode_text(state["observation"]) == "dark"
    for action, ends in ((0, [False, True, True]), (1, [True, False, True])):
        step = env.step(env.reset().set("action", torch.tensor(action)))["next"]
        assert [step[end].item() for end in ("terminated", "truncated", "done")] == ends
        assert decode_text(step["observation"]) == str(action)
    assert "success" not in step.keys() and "hindsight" not in step.keys()


class Wide(stairs.Stairs):
    """Has more to say than there is room."""

    def look(self):
        ways = [f"walk way {way}" for way in range(6)]
        return "You see " + "a long hall " * 3, {"goal": "Leave", "ways": ways, "won": False}

    def step(self, action):
        self.steps += 1
        return self.look()[0], 0.0, False, False, self.look()[1]


def test_too_many_actions_are_an_error_or_left_out():
    with pytest.raises(ValueError, match=r"actions\[0\] lists 6 actions, and max_actions is 4"):
        stairs.wrap([Wide()]).reset()
    state = stairs.wrap([Wide()], overflow="first").reset()
    assert texts(state, "actions") == [[f"walk way {way}" for way in range(4)]]
    drawn = set()
    env = stairs.wrap([Wide()], overflow="sample", seed=0)
    for _ in range(30):
        state = env.reset()
        (row,) = texts(state, "actions")
        assert len(row) == 4 and row == sorted(row)
        drawn |= set(row)
    assert len(drawn) == 6
    other = stairs.wrap([Wide()], overflow="sample", seed=1)
    other.load_state_dict(env.state_dict())
    assert other._played[0].actions == row, "the same when it is played again"


def test_longer_texts_are_an_error_or_cut_and_counted():
    size = {"max_actions": 6, "observation_bytes": 20}
    with pytest.raises(ValueError, match=r"observation_bytes \(20\) is too small for 'You see"):
        stairs.wrap([Wide()], **size).reset()
    for keep, left in (("head", "You see a long hall"), ("tail", "hall a long hall ")):
        env = stairs.wrap([Wide(), Wide()], keep=keep, **size)
        with pytest.warns(UserWarning, match=rf"\({keep} kept\), the first one for observation_"):
            state = env.reset()
        assert decode_text(state["observation"]) == [left] * 2
        env.reset()  # warns no more
        assert env.num_cut == {"observation": 4}


def test_actions_that_a_cut_makes_alike_are_refused():
    env = stairs.wrap([Wide()], max_actions=6, action_bytes=8, keep="head")
    with (
        pytest.warns(match="texts are cut"),
        pytest.raises(ValueError, match=r"actions\[0\] has two .* 'walk way 0' and 'walk way 1'"),
    ):
        env.reset()


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


class Mute(stairs.Stairs):
    step = None


GAME = stairs.Stairs()


@pytest.mark.parametrize(
    ("games", "message"),
    [
        ([], "games is empty"),
        ([None], r"games\[0\] \(NoneType\) has no method reset"),
        ([Mute()], r"games\[0\] \(Mute\) has no method step: a game must have"),
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
    assert texts(env.step(state.set("action", torch.tensor([0, 1])))["next"], "observation") == [
        "You are on floor 1",
        "You are on floor -1",
    ]


@pytest.mark.parametrize("number", [None, 3])
def test_games_pursue_goals_of_a_table(number):
    """Uniformly, by the stream of each game; and their ids are written with the texts."""
    env = stairs.make_chosen(
        number, seed=0, max_hindsight=2, goal_kinds=("near", "far"), kind_of=stairs.is_far
    )
    check_env_specs(env, break_when_any_done="both")
    described = describe_env(env)
    assert described.goal_texts == tuple(stairs.FLOORS)
    assert (described.goal_kind_ids, described.goal_kind_prior) == ([0, 0, 1, 1], [2, 2])
    env.set_seed(1)
    steps = env.rollout(60, break_when_any_done=False)
    ids, goals = steps["goal_id"].flatten(), texts(steps.reshape(-1), "goal")
    assert goals == [stairs.FLOORS[i] for i in ids] and set(ids.tolist()) == {0, 1, 2, 3}
    named = steps["next", "hindsight", "goal_id"]
    on = [int(text.split()[-1]) for text in texts(steps["next"].reshape(-1), "observation")]
    places = {-1: 0, 1: 1, -2: 2, 2: 3}  # floor 0, and those beyond, are in no table
    assert named[..., 0].flatten().tolist() == [places.get(floor, -1) for floor in on]
    assert (named[..., 1] == -1).all()
    after = steps["next"]
    assert torch.equal(after["success"].flatten(), named[..., 0].flatten() == ids)


def test_there_may_be_more_kinds_of_goals_than_a_byte_counts():
    kinds = [f"kind {number}" for number in range(300)]
    far = lambda goal: 299 * stairs.is_far(goal)  # noqa: E731
    env = stairs.make_chosen(3, seed=0, goal_kinds=kinds, kind_of=far)
    check_env_specs(env)
    steps = env.rollout(30, break_when_any_done=False)
    assert torch.equal(steps["goal_kind"], 299 * (steps["goal_id"] > 1))
    for state, kind in ((steps, "goal_kind"), (steps["next"], ("hindsight", "kind"))):
        assert state[kind].max() == 299


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


def draws(ids):
    return {"goal_sampler": lambda generator, n: torch.tensor(ids)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"goal": "goal"}, r"goal \('goal'\), goal_text \(None\) and goal_texts .*: give one of"),
        ({"goal_texts": None}, r"goal \(None\), goal_text \(None\) and goal_texts \(None\)"),
        ({"goal_texts": ["a", "a"]}, r"goal_texts \(\['a', 'a'\]\) must be .* none empty or twice"),
        ({"goal_texts": []}, r"goal_texts \(\[\]\) must be a list of goals"),
        (draws([4]), r"goal_sampler must return 1 goal id in \[0, 4\), got ten"),
        (draws([True]), r"goal_sampler must return 1 goal id in \[0, 4\), got ten"),
    ],
)
def test_bad_tables_of_goals_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        stairs.make_chosen(2, **settings).reset()


def test_a_game_that_takes_no_goal_and_a_sampler_without_a_table_are_named():
    with pytest.raises(ValueError, match=r"reset of game 0 \(Stairs\) takes no argument goal"):
        stairs.make(2, goal=None, goal_texts=stairs.FLOORS).reset()
    judge = partial(stairs.floors)
    judge.goals = ["Reach floor 1", "Reach floor 7", "Fly"]
    with pytest.raises(
        ValueError, match=r"names 2 goals that are not in goal_texts, such as 'Fly'"
    ):
        stairs.make_chosen(2, hindsight=judge)
    with pytest.raises(ValueError, match="goal_sampler needs goal_texts, the table of goals"):
        stairs.make(2, goal_sampler=lambda _, n: torch.zeros(n).long())


def test_a_step_may_name_no_goal_and_actions_may_be_an_array():
    ways = np.array(["up", "down"])
    env = stairs.make(2, actions=lambda observation, info: ways, hindsight=lambda steps: None)
    assert texts(env.reset(), "actions") == [["up", "down"]] * 2
    assert texts(play(env, [0, 1]), ("hindsight", "goal")) == [[], []]


@pytest.mark.parametrize("seen", [{"at": 0}, [0], np.zeros(1)])
def test_a_game_may_return_the_same_objects_again(seen):
    at = "at" if isinstance(seen, dict) else 0

    class Counter:
        def reset(self):
            self.seen, self.info = seen, {"at": 0}
            return self.seen, self.info

        def step(self, action):
            self.seen[at], self.info["at"] = self.seen[at] + 1, self.info["at"] + 1
            return self.seen, 0.0, False, False, self.info

    paths = []
    env = TextEnvWrapper(
        [Counter()],
        max_actions=1,
        actions=lambda *_: ["go"],
        observation=lambda observation, info: str(observation[at]),
        goal_text="Go",
        hindsight=lambda steps: paths.append([(s.observation[at], s.info["at"]) for s in steps]),
    )
    play(env, [0], [0])
    assert paths[-1] == [(0, 0), (1, 1), (2, 2)]
