"""Goals named by a judge instead of the social partner, by the key `hindsight_by`."""

import pytest
import stairs
import torch
from tensordict.nn import TensorDictModule

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.runs.config import PPOGLAMConfig, RecipeConfig, SACGLAMConfig

SIMPLE = {"num_objects": 3, "sequential": False, "max_steps": 10}


@pytest.fixture
def made(training_env):
    def make(**settings):
        config = SACGLAMConfig(
            **{"num_envs": 4, "env": SIMPLE, "hindsight_by": "judge", **settings}
        )
        config.check()
        return training_env(config)

    return make


def played(env, steps=12, policy=None):
    torch.manual_seed(0)
    return env.rollout(steps, policy, break_when_any_done=False)


def named(row):
    return row[row >= 0].tolist()


class Says:
    """A judge that names the same goals after every step, and learns nothing."""

    def __init__(self, ids):
        self.odds = torch.full((182,), 0.9).index_fill_(0, torch.tensor(sorted(ids)), 1.1)

    def read(self, before, actions, after):
        return torch.zeros(len(before), 1)

    def learn(self, *given):
        pass

    def __call__(self, words):
        return self.odds.expand(len(words), -1)


def test_goals_are_written_as_a_partner_writes_them(made):
    """Once an episode and never the one pursued, with tokens and kinds; texts are gone."""
    env, goals = made()
    space, steps = PlaygroundTextEnv(1, **SIMPLE).goals, played(env)
    pursued = steps["goal_id"].flatten().tolist()
    tokens = dict(zip(pursued, steps["goal_tokens"].flatten(0, 1).tolist(), strict=True))
    ids = sorted(tokens)[:3]
    goals.judge.judge = Says(ids)
    before = steps
    steps = goals.judge(steps)
    after = steps["next"]
    for row in range(4):
        begins = True
        for t in range(12):
            pursued = int(before["goal_id"][row, t])
            expected = sorted(set(ids) - {pursued}) if begins else []
            assert sorted(named(after["hindsight", "goal_id"][row, t])) == expected
            begins = bool(before["next", "done"][row, t])
    assert after["hindsight", "goal_id"].shape == (4, 12, 32)
    first = after["hindsight"][0, 0]
    kinds = [int(space.kind_ids[i]) for i in named(first["goal_id"])]
    assert named(first["kind"]) == kinds and first["kind"].dtype == before["goal_kind"].dtype
    expected = [tokens[i] for i in named(first["goal_id"])]
    assert first["goal_tokens"].tolist()[: len(kinds)] == expected
    assert not first["goal_tokens"][len(kinds) :].any()
    before["goal_id"][0, 0] = 182
    with pytest.raises(ValueError, match=r"goal_id \(.*182, .*must be ids of goals, in \[0, 182\)"):
        goals.judge(before)
    assert not {"observation", "actions"} & {*steps.keys(), *after.keys()}


def test_the_judge_reads_what_was_played_and_learns_from_rewards_alone(made):
    env, goals = made()
    steps, told = played(env, 6), []
    goals.judge.judge.learn = lambda *given: told.append(given)
    before, action = steps["observation"], steps["action"][..., None, None]
    actions = steps["actions"].take_along_dim(action, 2).squeeze(2)
    pursued, reached = steps["goal_id"], steps["next", "reward"].squeeze(-1) > 0
    expected = []
    for t in range(6):
        texts = (before[:, t], actions[:, t], steps["next", "observation"][:, t])
        rows = [[bytes(row[row > 0].tolist()).decode() for row in text] for text in texts]
        expected.append(goals.judge.judge.read(*rows))
    other = steps.clone()
    other["next", "hindsight", "goal_id"] = torch.zeros_like(other["next", "hindsight", "goal_id"])
    for part in (steps, other):  # whatever the partner names
        goals.judge(part)
    assert len(told) == 12
    for t, (words, ids, labels) in enumerate(told):
        assert torch.equal(words, expected[t % 6]) and torch.equal(ids, pursued[:, t % 6])
        assert torch.equal(labels, reached[:, t % 6])


def test_it_is_compared_with_the_partner(made):
    """Of three goals named two are right; the partner named four."""
    env, goals = made()
    steps = played(env, 1)
    ids = torch.full((4, 1, steps["next", "hindsight", "goal_id"].shape[-1]), -1)
    ids[0, 0, :3], ids[1, 0, 0] = torch.tensor([7, 8, 9]), 6
    steps["goal_id"] = torch.full((4, 1), 181)
    steps["next", "hindsight", "goal_id"] = ids
    names = iter([torch.tensor([[9, 7, -1], [-1, -1, -1], [7, -1, -1], [-1, -1, -1]])])
    goals.judge._name = lambda _: next(names)
    goals.judge(steps)
    assert goals.measure(None) == {"judge/precision": 2 / 3, "judge/recall": 2 / 4}
    assert goals.measure(None) == {}


def test_of_goals_with_equal_texts_the_first_is_named(made):
    _, goals = made(env={**SIMPLE, "impossible": 0.5})
    table = PlaygroundTextEnv(1, **SIMPLE, impossible=0.5).goals.texts
    assert goals.judge._told.sum(1).tolist() == [len(table) - len(set(table))] * 4
    assert not goals.judge._told[:, : len(set(table))].any()


def untaught(goal_sampler=None):
    """Stairs that are told which floor to reach, and name nothing."""
    given = {"goal_texts": stairs.FLOORS, "hindsight": None, "max_hindsight": 0}
    return stairs.make_chosen(None, goal_sampler=goal_sampler, **given)


def test_a_game_without_a_partner(made):
    splits = {"env": {}, "eval_splits": {"train": {}}}
    where = {"env_class": f"{__name__}:untaught", "sampling": "uniform", **splits}
    env, goals = made(**where)
    first = TensorDictModule(lambda mask: mask.byte().argmax(-1), ["action_mask"], ["action"])
    after = goals.judge(played(env, 12, first))["next", "hindsight"]
    assert after["goal_id"].shape == (4, 12, 4) and (after["goal_id"] < 4).all()
    assert torch.equal(after["goal_id"] >= 0, after["kind"] == 0)
    assert goals.measure(None) == {}
    with pytest.raises(ValueError, match=r"hindsight \(true\) needs an environment that names"):
        made(**{**where, "hindsight_by": "partner"})


def test_bad_settings_are_named():
    judge, alone = {"hindsight_by": "judge"}, r"hindsight_by \(judge\) must be partner without hi"
    aligned = PPOGLAMConfig(hindsight="aligned", imagined=9, **judge)
    for config, message in (
        (SACGLAMConfig(hindsight=False, **judge), alone),
        (PPOGLAMConfig(**judge), alone),
        (RecipeConfig(**judge), alone),
        (SACGLAMConfig(hindsight_by="oracle"), r"hindsight_by \(oracle\) must be one of"),
        (SACGLAMConfig(imagined=9), r"imagined \(9\) must be 0 without hindsight_by=judge"),
        (aligned, r"imagined \(9\) must be 0 with hindsight=aligned"),
    ):
        with pytest.raises(ValueError, match=message):
            config.check()


def test_imagined_goals_are_pursued_and_judged_and_taught_to_nobody(made, language):
    """Behind the environment's 182 goals; the judge learns from the others' rewards."""
    env, goals = made(imagined=300)
    table = goals.sampler.goal_texts
    known = PlaygroundTextEnv(1, **SIMPLE).goals
    assert table[:182] == known.texts and len(table) > 182 and len(set(table)) == len(table)
    for text, kind in zip(table, goals.sampler.kinds.tolist(), strict=True):
        assert known.kinds[kind] == text.split()[0].lower() or text not in known.texts
    steps, told = played(env), []
    goals.judge.judge.learn = lambda words, ids, reached: told.append((ids, reached))
    other = steps["goal_id"] >= 182
    assert other.any() and not other.all()
    tokens = language.tokenizer([f" {table[i]}" for i in steps["goal_id"].flatten().tolist()])
    for row, ids in zip(steps["goal_tokens"].flatten(0, 1).tolist(), tokens.input_ids, strict=True):
        assert [i for i in row if i] == [i for i in ids if i in row]
    goals.judge(steps)
    for t, (ids, reached) in enumerate(told):
        own = ~other[:, t]
        assert torch.equal(ids, steps["goal_id"][own, t])
        assert torch.equal(reached, steps["next", "reward"].squeeze(-1)[own, t] > 0)
    goals.update(steps)
    ended = steps["next", "done"].squeeze(-1)
    found = goals.measure(None)
    assert found["imagined/pursued"] == (other & ended).sum() / ended.sum()
    reached = (steps["next", "reward"].squeeze(-1) > 0) & other
    assert found["imagined/reached"] == reached.sum() / (other & ended).sum()
    assert goals.measure(None) == {}
