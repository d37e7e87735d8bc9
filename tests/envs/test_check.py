"""What check_text_env finds, and how it says so."""

import pytest
import stairs
import torch
from tensordict import TensorDict
from torchrl.envs import SerialEnv, TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv, check_text_env
from torchrl_glam.text import TokenizeText, encode_text


class Faulty(PlaygroundTextEnv):
    """Playground-Text, but for what ``spoil`` does to each state."""

    def __init__(self, spoil, only_steps=False):
        super().__init__(num_envs=3, num_objects=3, sequential=False, seed=0)
        self.spoil, self.only_steps = spoil, only_steps

    def _reset(self, tensordict=None, **kwargs):
        state = super()._reset(tensordict, **kwargs)
        return state if self.only_steps else self.spoil(state)

    def _step(self, tensordict):
        return self.spoil(super()._step(tensordict))


def put(key, change):
    """Replaces an entry by what a function makes of it."""
    return lambda state: state.set(key, change(state[key]))


def put_row(key, row, value):
    def spoil(state):
        entry = state[key].clone()
        entry[row] = value
        return state.set(key, entry)

    return spoil


def repeat_an_action(state):
    actions = state["actions"].clone()
    actions[1, 2] = actions[1, 0]
    return state.update({"actions": actions, "action_mask": torch.ones(3, 5, dtype=torch.bool)})


def hindsight(width=None, kind=0, text="Grasp"):
    def spoil(state):
        goal = torch.zeros(3, 1, width or state["goal"].shape[-1], dtype=torch.uint8)
        goal[2, 0, : len(text)] = encode_text(text)
        kinds = torch.tensor([[-1], [-1], [kind]])
        return state.set("hindsight", TensorDict({"goal": goal, "kind": kinds}, [3]))

    return spoil


CUT = encode_text("É")[:1]  # half of a character
KIND, GOAL_ID = ("hindsight", "kind"), ("hindsight", "goal_id")
# With the error, in which {} stands for the reset or the step.
FAULTS = [
    (
        put_row("action_mask", 1, False),
        r"action_mask\[1\] of {} has no admissible action: each state needs one",
    ),
    (
        repeat_an_action,
        r"actions\[1, 2\] of {} is 'Go to .*', and so is actions\[1, 0\] .* must differ",
    ),
    (put_row("actions", (2, 3), 0), r"actions\[2, 3\] of {} is empty and admissible: mask it out"),
    (
        put("action_mask", torch.Tensor.char),
        r"action_mask of {} is torch.int8: it must be bool; write it so",
    ),
    (
        lambda state: state.exclude("action_mask"),
        r"action_mask is missing from {}: the text contract wants it, bool \[\*B, A\]",
    ),
    (
        put("observation", str),
        r"observation of {} is str: it must be a uint8 tensor \[\*B, bytes\].*encode_text",
    ),
    (
        put("observation", lambda text: text.unsqueeze(1)),
        r"observation of {} has the shape \[3, 1, \d+\]: it must be \[\*B, bytes\], B being",
    ),
    (
        put("action_mask", lambda mask: mask[:, :4]),
        "actions of {} has 5 candidates and action_mask 4: pad both",
    ),
    (put_row("goal", (1, 0), CUT), r"goal\[1\] of {}: text is not UTF-8"),
    (
        put_row("observation", (2, 4), 0),
        r"observation\[2\] of {} continues after a zero byte: zeros are padding",
    ),
    (hindsight(width=9), r"hindsight.goal of {} has 9 bytes and goal \d\d: .* pad both alike"),
    (hindsight(kind=-1), r"hindsight.goal\[2, 0\] of {} names a goal and its kind is -1"),
    (hindsight(text=""), r"hindsight.goal\[2, 0\] of {} is empty and its kind is 0"),
    (hindsight(kind=9), r"hindsight.kind\[2, 0\] of {} is 9, and there are 4 goal_kinds \('grasp'"),
    (
        put_row(GOAL_ID, (0, 1), 182),
        r"hindsight.goal_id\[0, 1\] of {} names a goal and its kind is -1",
    ),
    (
        put_row("goal_id", 1, -1),
        r"goal_id\[1\] of {} is -1, and there are 182 goal_texts: name more",
    ),
    (
        put(KIND, lambda kind: kind[:, 1:]),
        r"hindsight.goal_id of {} has \d+ slots and hindsight.kind \d+: a kind for each",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), FAULTS)
def test_a_fault_is_named_with_key_row_and_remedy(spoil, message):
    with pytest.raises(ValueError, match=message.format("the reset")):
        check_text_env(Faulty(spoil))
    with pytest.raises(ValueError, match=message.format("the step")):
        check_text_env(Faulty(spoil, only_steps=True))


def test_specs_and_many_dimensions_of_batch():
    env = Faulty(lambda state: state.set("more", torch.zeros(3)))
    with pytest.raises(AssertionError, match="keys of the specs and data do not match"):
        check_text_env(env)
    with pytest.raises(ValueError, match=r"env is Stairs: .* TextEnvWrapper makes one of a game"):
        check_text_env(stairs.Stairs())
    env = SerialEnv(1, lambda: SerialEnv(1, lambda: PlaygroundTextEnv(num_envs=2)))
    with pytest.raises(ValueError, match=r"batch size \[1, 1, 2\] has 3 dimensions"):
        check_text_env(env)


def test_a_game_that_ignores_its_seed_is_named():
    games = [stairs.Stairs(), stairs.Unruly()]
    message = r"(goal|observation) of state \d+ differs when the same actions are"
    with pytest.raises(ValueError, match=message):
        check_text_env(stairs.wrap(games))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (0.5, r"reward\[2\] of the step is 0.5 where no episode ends: .* success_key"),
        (-1.0, r"reward\[2\] of the step is -1.0, and hindsight gives .* from 0 to 1. Give others"),
        (float("nan"), r"reward\[2\] of the step is nan: rewards must be finite"),
        (float("inf"), r"reward\[2\] of the step is inf: rewards must be finite"),
    ],
)
def test_rewards_that_recipes_refuse_are_named(reward, message):
    with pytest.raises(ValueError, match=message):
        check_text_env(Faulty(put_row("reward", 2, reward), only_steps=True))


def test_other_rewards_pass_with_their_scale_or_without_hindsight():
    costs = {"reward": lambda step: float(step.info["won"]) - 1}
    check_text_env(stairs.make(2, **costs), reward_scale=(-1, 0))
    check_text_env(stairs.make(2, hindsight=None, **costs))


class Hasty(PlaygroundTextEnv):
    """Plays all instances, whatever a partial step leaves out."""

    def _step(self, tensordict):
        return super()._step(tensordict.exclude("_step"))


def test_an_environment_without_partial_steps_is_named():
    message = r"(observation|action_mask)\[0\] of the step changes although \"_step\" is False"
    with pytest.raises(ValueError, match=message):
        check_text_env(Hasty(num_envs=3, num_objects=3, sequential=False, seed=0))
    check_text_env(Hasty(num_envs=1, num_objects=3, sequential=False, seed=0))


def test_environments_that_keep_the_contract_pass(tokenizer):
    check_text_env(PlaygroundTextEnv(num_envs=3, seed=0))
    for number in (None, 2):
        check_text_env(stairs.make(number))
    check_text_env(TransformedEnv(stairs.make(2), TokenizeText(tokenizer, observation_length=40)))
    check_text_env(SerialEnv(2, lambda: stairs.make(2)))
