"""Evaluation and instruments against episodes counted by hand, and a loop over their steps."""

from functools import partial
from statistics import fmean

import numpy as np
import pytest
import stairs
import torch
from corridor import Corridor
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.envs import RenameTransform, SerialEnv, TransformedEnv

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
from torchrl_glam.runs.evaluation import evaluate, play_randomly
from torchrl_glam.runs.probe import PlanProbe
from torchrl_glam.runs.records.statistics import EpisodeStatistics, GoalCoverage
from torchrl_glam.text import decode_text


def make_env(num_envs=64, **settings):
    settings = {"num_objects": 3, "sequential": False, "max_steps": 10, "text": False} | settings
    return PlaygroundTextEnv(num_envs=num_envs, **settings)


def test_random_play_equals_episodes_counted_one_by_one():
    """One episode an instance, without regard to which ends first."""
    successes, lengths, env = [], [], make_env(1, seed=0)
    for _ in range(300):
        steps = env.rollout(10)
        successes.append(steps["next", "terminated"].any().item())
        lengths.append(steps.shape[-1])
    results = evaluate(None, make_env(3000), seed=0)
    assert abs(results["success"] - sum(successes) / 300) < 0.09  # three standard errors
    assert abs(results["length"] - sum(lengths) / 300) < 0.6
    chance = play_randomly(env := make_env(500))  # for a report
    assert chance.episodes == 2000 and chance == play_randomly(env)
    assert abs(chance.success - results["success"]) < 0.05
    assert abs(chance.length - results["length"]) < 0.3
    assert play_randomly(make_env(5), seconds=0.0).episodes == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: stairs.make(6),
        lambda: SerialEnv(6, stairs.alone),
        lambda: SerialEnv(2, partial(stairs.make, 3)),
    ],
    ids=["a batch", "workers", "workers with batches"],
)
def test_only_running_episodes_are_played_and_shown_to_the_policy_and_count_once(monkeypatch, make):
    """Going up reaches the floor above, in one step or two; the others are out of time."""
    played, seen, step = [], [], stairs.Stairs.step

    def counted(self, action):
        played.append(self)
        return step(self, action)

    monkeypatch.setattr(stairs.Stairs, "step", counted)
    env = make()
    env.set_seed(3)
    floors = [int(text.split()[-1]) for text in np.ravel(decode_text(env.reset()["goal"]))]
    assert {*floors} > {1, 2} and min(floors) < 0
    steps = [floor if floor > 0 else 8 for floor in floors]

    def up(state):
        seen.append(state.numel())
        return state.set("action", torch.zeros(state.shape, dtype=torch.long))

    played.clear()
    results = evaluate(up, env, seed=3)
    assert sum(seen) == sum(steps)
    assert results["length"] == pytest.approx(sum(steps) / 6)
    assert results["success"] == pytest.approx(sum(floor > 0 for floor in floors) / 6)
    if env.batch_size.numel() == env.batch_size[0]:
        assert len(played) == sum(steps)
    assert evaluate(None, env, seed=3) == evaluate(None, stairs.make(6), seed=3)


def test_the_same_seed_gives_the_same_result_and_leaves_the_random_state():
    env = make_env()
    before = torch.get_rng_state()
    first = evaluate(None, env, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert evaluate(None, env, seed=1) == first
    assert evaluate(None, env, seed=2) != first


LEFT, RIGHT, STAY = range(3)


class Lake:
    """A hole on the left, the goal on the right, and three steps to get to either.

    Rewards are those of FrozenLake, or ``per_step`` more; ``("info", "success")`` tells the truth.
    """

    def __init__(self, per_step=0.0):
        self.per_step = per_step

    def reset(self):
        self.steps = 0
        return "Ice", {"ways": ["left", "right", "stay"], "won": False}

    def step(self, action):
        self.steps += 1
        won, stays = action == "right", action == "stay"
        info = {"ways": ["left", "right", "stay"], "won": won}
        return "Ice", won + self.per_step, not stays, stays and self.steps == 3, info


def lake(*games, success=None):
    env = stairs.wrap(games, goal=None, goal_text="Cross", hindsight=None, success=success)
    rename = RenameTransform(["success"] * bool(success), [("info", "success")] * bool(success))
    return TransformedEnv(env, rename)


def chosen(*actions):
    """A policy of running instances only: all of them first, then the ones that stay."""
    fixed = torch.tensor(actions)
    return TensorDictModule(lambda mask: fixed[-len(mask) :], ["action_mask"], ["action"])


@pytest.mark.parametrize(
    ("per_step", "options"),
    [(0.0, {}), *((per_step, {"success_key": ("info", "success")}) for per_step in (-1.0, 0.1))],
)
def test_falling_into_a_hole_ends_an_episode_without_success(per_step, options):
    """Of eight instances five fall into the hole, two reach the goal, and one stays.

    Whatever the rewards on the way, where success has an entry of its own.
    """
    policy = chosen(LEFT, LEFT, RIGHT, LEFT, LEFT, RIGHT, LEFT, STAY)
    env = lake(*(Lake(per_step) for _ in range(8)), success="won" if options else None)
    statistics = EpisodeStatistics(**options)
    statistics.add(env.rollout(3, policy, break_when_any_done=False))  # 7 episodes of 1 step twice
    vars(env.base_env).update(options)  # what the environment says itself
    results, summary = evaluate(policy, env, seed=0), statistics.summary()
    assert results["success"] == results["success/goal"] == 2 / 8
    assert results["length"] == (7 * 1 + 3) / 8
    assert summary["episodes"] == 7 * 3 + 1
    assert summary["success"] == summary["success/goal"] == 2 * 3 / 22


class Mirrored(Lake):
    """The action that finished instances are given is the right one."""

    def step(self, action):
        return super().step({"left": "right", "right": "left"}.get(action, action))


def test_what_a_finished_instance_reaches_beside_a_running_one_does_not_count():
    policy = chosen(RIGHT, STAY)  # falls at once, and is out of time
    env = SerialEnv(1, lambda: lake(Mirrored(), Mirrored()))
    results = evaluate(policy, env, seed=0)
    assert (results["success"], results["length"]) == (0.0, (1 + 3) / 2)


@pytest.mark.parametrize(
    ("step_reward", "success_key", "message"),
    [
        (0.1, "reward", "'reward' is positive on a step .* write a bool entry"),
        (0.0, ("info", "solved"), r"key \('info', 'solved'\) is missing: success_key must"),
        (0.0, "reached", "'goal_kind' is from 0 to 1, and must count in the 1 goal kinds"),
    ],
)
def test_steps_that_do_not_tell_success_or_their_kinds_are_refused(
    step_reward, success_key, message
):
    """Rewards on the way, above all, are not taken for success."""
    env = Corridor(16, step_reward=step_reward)
    steps = env.rollout(40, break_when_any_done=False)
    with pytest.raises(ValueError, match=message):
        EpisodeStatistics(success_key=success_key).add(steps)


def test_a_kind_named_in_hindsight_that_has_no_name_is_refused():
    named = {"goal_tokens": torch.tensor([[[5], [6]]]), "kind": torch.tensor([[0, 2]])}
    steps = TensorDict({"next": {"hindsight": named}}, [1])
    with pytest.raises(ValueError, match=r"'kind'\) is from 0 to 2, and must count in the 2 goal"):
        GoalCoverage(["grasp", "grow"]).add(steps)


def test_an_episode_that_does_not_end_is_an_error(monkeypatch):
    monkeypatch.setattr("torchrl_glam.runs.evaluation.LONGEST_EPISODE", 7)
    with pytest.raises(ValueError, match="of 7 steps that does not end: .* a limit, such as max"):
        evaluate(None, stairs.make(16), seed=0)


# Instruments

GAMMA = 0.8


@pytest.fixture
def env():
    return make_env(24, num_objects=6, sequential=True, max_steps=9, seed=0)


@pytest.fixture
def oracle(env):
    return OraclePolicy(env.goals)


def noisy(oracle):
    """A policy that follows the plan in six of ten states, told by their objects, and a critic."""

    def follows(states):
        return (states["state", "objects"].sum(-1) * 7 + states["state", "on"]) % 10 < 6

    def heads(states):
        best, left = oracle.shortest_plans(states)
        other = states["action_mask"] & ~best
        chosen = torch.where(follows(states)[:, None], best, other).float()
        return chosen / chosen.sum(-1, keepdim=True), best * 0.25 - 0.5

    def policy(tensordict):
        probabilities, _ = heads(tensordict)
        return tensordict.set("action", probabilities.argmax(-1))

    return policy, heads


def test_a_critic_that_is_right_is_calibrated_in_every_fifth(env, oracle):
    def heads(states):
        best, left = oracle.shortest_plans(states)
        return best.float(), GAMMA ** (left[:, None] - best.float())

    results = PlanProbe(env, oracle, 9, gamma=GAMMA, seed=5)(oracle, heads)
    q, returns = (
        [results[f"probe/calibration/{fifth}/{name}"] for fifth in range(1, 6)]
        for name in ("q", "return")
    )
    assert q == pytest.approx(returns) and q == sorted(q) and q[0] < 0.5 < 0.9 < q[-1]


def test_shares_are_those_of_a_loop_over_the_states(env, oracle):
    """And the same once more; the global generator is left alone."""
    policy, heads = noisy(oracle)
    probe, before = PlanProbe(env, oracle, 9, gamma=GAMMA, seed=5), torch.get_rng_state()
    results = probe(policy, heads)
    assert probe(policy, heads) == results
    assert torch.equal(torch.get_rng_state(), before)
    env.set_seed(5)
    steps = env.rollout(9, policy, break_when_any_done=False)
    right, second, leads, errors, taken = [], [], [], [], []
    for episode in steps:
        ends = episode["next", "done"].flatten().nonzero().flatten().tolist()
        episode = episode[: ends[0] + 1 if ends else 9]
        rewards = episode["next", "reward"].flatten().tolist()
        for at, step in enumerate(episode):
            best, left = (value[0] for value in oracle.shortest_plans(step[None]))
            probabilities, q_values = (value[0] for value in heads(step[None]))
            value = sum(GAMMA**k * reward for k, reward in enumerate(rewards[at:]))
            taken.append(float(q_values[step["action"]]))
            errors.append(taken[-1] - value)
            if left < 1 or bool((best == step["action_mask"]).all()):
                continue
            right.append(bool(best[probabilities.argmax()]))
            if step["state", "stage"] == 1:
                second.append(right[-1])
            others = step["action_mask"] & ~best
            leads.append(float(q_values[best].mean() - q_values[others].mean()))
    assert results["probe/policy/policy"] == pytest.approx(fmean(right))
    assert results["probe/policy/policy/second"] == pytest.approx(fmean(second))
    assert results["probe/policy/lead"] == pytest.approx(fmean(leads)) == pytest.approx(0.25)
    assert results["probe/q_error"] == pytest.approx(fmean(errors), abs=1e-6)
    for fifth in range(5):  # parts that differ by one state at the most, the larger ones first
        low, high = (i * (len(taken) // 5) + min(i, len(taken) % 5) for i in (fifth, fifth + 1))
        expected = fmean(sorted(taken)[low:high])
        assert results[f"probe/calibration/{fifth + 1}/q"] == pytest.approx(expected)
    assert 0.2 < results["probe/policy/policy"] < 0.9
    assert results["probe/plan/critic"] == results["probe/random/critic"] == 1.0
