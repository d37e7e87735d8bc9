"""Instruments, against what a loop over states and steps finds."""

import pytest
import torch
from tensordict import TensorDict

from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
from torchrl_glam.runs.probe import PlanProbe
from torchrl_glam.runs.records.statistics import GoalCoverage

GAMMA = 0.8


@pytest.fixture
def env():
    return PlaygroundTextEnv(num_envs=24, num_objects=6, max_steps=9, seed=0, text=False)


@pytest.fixture
def oracle(env):
    return OraclePolicy(env.goals)


def noisy(oracle, share):
    """A policy that follows the plan in some states, told by their objects, and a critic."""

    def follows(states):
        return (states["state", "objects"].sum(-1) * 7 + states["state", "on"]) % 10 < 10 * share

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
    policy, heads = noisy(oracle, 0.6)
    results = PlanProbe(env, oracle, 9, gamma=GAMMA, seed=5)(policy, heads)
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
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    assert results["probe/policy/policy"] == pytest.approx(mean(right))
    assert results["probe/policy/policy/second"] == pytest.approx(mean(second))
    assert results["probe/policy/lead"] == pytest.approx(mean(leads)) == pytest.approx(0.25)
    assert results["probe/q_error"] == pytest.approx(mean(errors), abs=1e-6)
    for fifth in range(5):  # parts that differ by one state at the most, the larger ones first
        low, high = (i * (len(taken) // 5) + min(i, len(taken) % 5) for i in (fifth, fifth + 1))
        expected = mean(sorted(taken)[low:high])
        assert results[f"probe/calibration/{fifth + 1}/q"] == pytest.approx(expected)
    assert 0.2 < results["probe/policy/policy"] < 0.9
    assert results["probe/plan/critic"] == results["probe/random/critic"] == 1.0


def test_probes_are_repeatable_and_leave_the_global_generator_alone(env, oracle):
    policy, heads = noisy(oracle, 0.5)
    probe = PlanProbe(env, oracle, 9, gamma=GAMMA)
    before = torch.get_rng_state()
    assert probe(policy, heads) == probe(policy, heads)
    assert torch.equal(torch.get_rng_state(), before)


def test_coverage_counts_each_goal_once_and_survives_a_checkpoint():
    def steps(*goals):
        tokens = torch.tensor([[[goal, goal + 1]] for goal in goals])
        named = {"goal_tokens": tokens, "kind": torch.zeros(len(goals), 1, dtype=torch.int8)}
        return TensorDict({"next": {"hindsight": named}}, batch_size=[len(goals)])

    coverage = GoalCoverage()
    coverage.add(steps(3, 4, 3, 9))
    first = {"goals/named": 3, "goals/new_per_1000_steps": 750.0, "kinds/named/goal": 1.0}
    assert coverage.summary() == first
    coverage.add(steps(4, 5))
    other = GoalCoverage()
    other.load_state_dict(coverage.state_dict())
    second = {"goals/named": 4, "goals/new_per_1000_steps": 500.0, "kinds/named/goal": 1.0}
    assert other.summary() == second
