"""Evaluation against episodes counted by hand."""

from functools import partial

import numpy as np
import pytest
import stairs
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.envs import RenameTransform, SerialEnv, TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.runs.evaluation import evaluate, play_randomly
from torchrl_glam.runs.records.statistics import EpisodeStatistics
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


def on_the_lake(per_step=0.0, **options):
    """Of eight instances five fall into the hole, two reach the goal, and one stays."""
    policy = chosen(LEFT, LEFT, RIGHT, LEFT, LEFT, RIGHT, LEFT, STAY)
    env = lake(*(Lake(per_step) for _ in range(8)), success="won" if options else None)
    statistics = EpisodeStatistics(**options)
    statistics.add(env.rollout(3, policy, break_when_any_done=False))  # 7 episodes of 1 step twice
    vars(env.base_env).update(options)  # what the environment says itself
    return evaluate(policy, env, seed=0), statistics.summary()


@pytest.mark.parametrize(
    ("per_step", "options"),
    [(0.0, {}), *((per_step, {"success_key": ("info", "success")}) for per_step in (-1.0, 0.1))],
)
def test_falling_into_a_hole_ends_an_episode_without_success(per_step, options):
    """Whatever the rewards on the way, where success has an entry of its own."""
    results, summary = on_the_lake(per_step, **options)
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


def test_rewards_on_the_way_are_not_taken_for_success():
    steps = lake(*(Lake(0.1) for _ in range(8))).rollout(3, break_when_any_done=False)
    with pytest.raises(ValueError, match=r"'reward' is positive on a step that does not end an"):
        EpisodeStatistics().add(steps)
    with pytest.raises(ValueError, match=r"let the environment write a bool entry .* success_key"):
        on_the_lake(per_step=0.1)


def test_a_missing_entry_of_success_is_named():
    with pytest.raises(ValueError, match=r"key \('info', 'solved'\) is missing: success_key must"):
        EpisodeStatistics(success_key=("info", "solved")).add(lake(Lake()).rollout(1))


def test_different_goals_that_were_reached_are_counted():
    """Of two processes: 5 and 6 were reached, and 7 was not."""
    first, second = (EpisodeStatistics(["a", "b"]) for _ in range(2))
    for record, tokens, kinds in (
        (first, [[5, 0], [6, 1], [5, 0]], [0, 1, 0]),
        (second, [[6, 1], [7, 1]], [1, 1]),
    ):
        done = torch.ones((len(tokens), 1), dtype=torch.bool)
        reward = torch.tensor([[float(row[0] < 7)] for row in tokens])
        steps = {"goal_tokens": torch.tensor(tokens), "goal_kind": torch.tensor(kinds)}
        record.add(TensorDict({**steps, "next": {"done": done, "reward": reward}}, [len(tokens)]))
    first.merge(second.state_dict())
    expected = {"episodes": 5, "success": 0.8, "success/a": 1.0, "kinds/pursued/a": 0.4}
    expected |= {"success/b": 2 / 3, "kinds/pursued/b": 0.6, "goals/reached": 2}
    assert first.summary() == pytest.approx(expected)
    assert first.summary() == {"episodes": 0, "goals/reached": 2}


def test_kinds_that_nobody_named_are_refused():
    steps = make_env(16, seed=0).rollout(40, break_when_any_done=False)
    with pytest.raises(
        ValueError, match=r"'goal_kind' is from 0 to 1, and must count in the 1 goal"
    ):
        EpisodeStatistics().add(steps)


def test_an_episode_that_does_not_end_is_an_error(monkeypatch):
    monkeypatch.setattr("torchrl_glam.runs.evaluation.LONGEST_EPISODE", 7)
    with pytest.raises(
        ValueError, match="of 7 steps that does not end: .* a limit, such as max_st"
    ):
        evaluate(None, stairs.make(16), seed=0)
