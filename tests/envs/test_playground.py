"""The environment as TorchRL sees it: specs, seeds, resets, saved states, bad input."""

import pytest
import torch
from torchrl.envs import check_env_specs

from torchrl_glam.envs import GoalSpace, PlaygroundTextEnv
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.text import decode_text

SIZES = [
    {},
    {"text": False},
    {"num_envs": 1, "num_objects": 3, "sequential": False},
    {"num_envs": 5, "split": "test", "max_steps": 2},
    {"num_envs": 3, "num_objects": 10, "max_steps": 3, "text": False},
    {"num_envs": 6, "num_objects": 3, "sequential": False, "impossible": 0.8},
]


def make(**kwargs):
    return PlaygroundTextEnv(**{"num_envs": 6, "seed": 0, **kwargs})


def only(text, split="train"):
    goal = GoalSpace(split).id_of(text)
    return lambda generator, n: torch.full((n,), goal)


def place(env, objects):
    """Starts every environment in a scene of these objects."""
    state = env.reset()
    env._scene[:, : env.num_objects] = torch.tensor([*map(OBJECTS.index, objects)])
    return state


def play(env, state, *actions):
    """Takes the same actions in every environment; returns the last ``next``."""
    for action in actions:
        index = decode_text(env.describer.actions(env._scene)[0]).index(action)
        state["action"] = torch.full(env.batch_size, index)
        state = env.step(state)["next"]
    return state


@pytest.mark.parametrize("kwargs", SIZES)
def test_specs(kwargs):
    check_env_specs(PlaygroundTextEnv(**kwargs), break_when_any_done="both", seed=0)


def test_figure_3_of_the_paper():
    env = make(goal_sampler=only("Grow any mouse then grow any lion"))
    objects = ["green water", "green mouse", "blue sofa", "red door", "blue lion", "red food"]
    state = place(env, objects)
    after = play(env, state, "Go to green water")
    assert decode_text(after["observation"][0]) == (
        "You see: green water, green mouse, blue sofa, red door, blue lion, red food\n"
        "You are on: green water\nYou are holding: nothing\nYou have grown: nothing"
    )
    after = play(env, after, "Grasp", "Go to green mouse")
    assert decode_text(after["observation"][0]) == (
        "You see: green mouse, blue sofa, red door, blue lion, red food\n"
        "You are on: green mouse\nYou are holding: green water\nYou have grown: green mouse"
    )
    assert (after["state", "stage"] == 1).all()
    after = play(env, after, "Go to blue lion")
    assert decode_text(after["observation"][0]).endswith("You have grown: green mouse, blue lion")
    assert after["terminated"].all() and (after["reward"] == 1).all()
    named = set(env.goals.texts_of(after["hindsight", "goal_id"][0]))
    assert "Grow green mouse then grow blue lion" in named
    assert "Grow any mouse then grow any lion" not in named  # the pursued goal


def test_most_names_is_attained():
    """In the richest scene of the train split one step reaches as many goals as there is room."""
    env = make(goal_sampler=only("Grasp red desk"), num_objects=6)
    plant = "green rose"
    animals = ["red lion", "red cat", "blue cow", "green pig"]
    state = place(env, ["red water", plant, *animals])
    grow = [f"Go to {living}" for living in (plant, *animals)]
    grasp = ["Release", f"Go to {plant}", "Grasp"]
    after = play(env, state, "Go to red water", "Grasp", *grow, *grasp)
    assert (after["hindsight", "goal_id"] >= 0).sum(1).tolist() == [env.partner.max_names] * 6


def test_same_seed_same_episodes():
    def played(seed):
        env = make(seed=seed)
        torch.manual_seed(0)  # of the actions
        return env, env.rollout(40, break_when_any_done=False)

    env, steps = played(3)
    assert (steps == played(3)[1]).all()
    assert not (steps["observation"] == played(4)[1]["observation"]).all()
    env.set_seed(4)
    assert (env.reset() == make(seed=4).reset()).all()


def test_unseeded_environments_differ_and_follow_the_global_seed():
    def starts():
        torch.manual_seed(1)
        return [make(seed=None).reset() for _ in range(2)]

    first, second = starts()
    assert not (first["observation"] == second["observation"]).all()
    assert (first == starts()[0]).all()


def test_partial_steps():
    env, moves = make(), torch.tensor([True, False, False, True, False, True])
    state = env.rollout(3)[:, -1]["next"].exclude("reward")
    before = state[~moves].clone()
    action = torch.where(moves, env.rand_action()["action"], -1)  # -1 is not looked at
    state.update({"_step": moves.unsqueeze(1), "action": action})
    after = env.step(state)["next"][~moves]
    for key in ("observation", "action_mask", "state", "done"):
        assert (after[key] == before[key]).all()
    assert (after["hindsight", "kind"] == -1).all() and (after["reward"] == 0).all()
    assert env._steps.tolist() == [4, 3, 3, 4, 3, 4]
    state = env.rand_action(env.reset().select("action_mask"))
    env.step(state.set("_step", moves.unsqueeze(1)))  # nothing says whether episodes are over


def test_saved_state_continues_bit_for_bit():
    env, restored = make(seed=1), make(seed=2)
    state = env.rollout(5, break_when_any_done=False)[:, -1]["next"].exclude("reward")
    saved = {key: value.clone() for key, value in env.state_dict().items()}
    states = []
    for each in (env, restored):
        each.load_state_dict(saved)
        draws = torch.stack([each.action_spec.rand() for _ in range(50)], 1)
        assert state["action_mask"].gather(1, draws).all()
        torch.manual_seed(0)
        states.append(
            each.rollout(30, tensordict=state.clone(), auto_reset=False, break_when_any_done=False)
        )
    assert states[0]["next", "done"].any()  # fresh episodes too, so the generator is restored
    assert (states[0] == states[1]).all()


def test_outputs_do_not_change_later():
    env = make()
    state = env.reset()
    copies = []
    for _ in range(20):
        data, state = env.step_and_maybe_reset(env.rand_action(state))
        copies.append((data, data.clone()))
    assert all((data == copy).all() for data, copy in copies)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"num_objects": 2}, r"num_objects \(2\) .* can need 3 objects, a living thing for each"),
        ({"num_objects": 97}, r"num_objects \(97\) must be at most 96"),
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"max_steps": 0}, r"max_steps must be in \[1, 32767\], got 0"),
        ({"impossible": -0.1}, "impossible must be a share in .*, got -0.1"),
        ({"impossible": 1.5}, "impossible must be a share in .*, got 1.5"),
        ({"impossible": float("nan")}, "impossible must be a share in .*, got nan"),
        (
            {"impossible": 0.1, "num_objects": 37},
            r"num_objects \(37\) must be at most 36 where there are",
        ),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        PlaygroundTextEnv(**kwargs)


@pytest.mark.parametrize("goals", [[8470] * 6, [-1] * 6, [0] * 7, [0.0] * 6, [True] * 6], ids=str)
def test_bad_goal_sampler(goals):
    with pytest.raises(ValueError, match=r"must return 6 goal ids in \[0, 8470\), got"):
        make(goal_sampler=lambda generator, n: torch.tensor(goals)).reset()


def test_a_reset_of_no_environment_asks_for_no_goal():
    env = make(goal_sampler=lambda generator, n: torch.tensor([7] * n))  # float32 for none
    state = env.reset()
    after = env.reset(state.clone().set("_reset", torch.zeros(6, 1, dtype=torch.bool)))
    assert (after["goal_id"] == 7).all() and (after["action_mask"] == state["action_mask"]).all()


def assert_refused(env, state, message):
    """That a step from this state is an error, and changes nothing."""
    before = {key: value.clone() for key, value in env.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        env.step(state)
    assert all(torch.equal(value, before[key]) for key, value in env.state_dict().items())


@pytest.mark.parametrize(
    ("action", "why"),
    [(-1, "is out of range"), (8, "is out of range"), (7, "'Release' is masked out")],
)
def test_a_refused_action_is_named_and_changes_nothing(action, why):
    env = make()
    state = env.reset().set("action", torch.tensor([6, 6, action, 6, 6, 6]))
    assert_refused(env, state, rf"action\[2\] = {action} {why}. .*: Grasp\.$")


def test_an_episode_that_is_over_or_has_not_begun_is_not_played_on():
    env = make(max_steps=2)
    assert_refused(env, env.rand_action(), "episode of environment 0 is over: reset it")
    state = env.rollout(2, break_when_any_done=False)[:, -1]["next"]
    assert state["truncated"].any()
    late = int(state["truncated"].flatten().int().argmax())
    state = env.rand_action(state).set("_step", torch.arange(6) == late)
    assert_refused(env, state, f"episode of environment {late} is over: reset it")


def test_actions_may_have_a_last_dimension():
    env, other = make(), make()
    state = env.rand_action(env.reset())
    step = other.step(other.reset().set("action", state["action"].unsqueeze(1)))
    assert (env.step(state)["next"] == step["next"]).all()


def test_render():
    env = make()
    state = env.step(env.rand_action(env.reset()))["next"][2]
    goal, seen = decode_text(state["goal"]), decode_text(state["observation"])
    assert env.render(2).startswith(f"Goal: {goal} (step 1 of 16)\n{seen}\nActions: ")
    with pytest.raises(IndexError, match=r"index must be in \[0, \d+\), got -1"):
        env.render(-1)
