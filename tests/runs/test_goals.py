"""The goals that training pursues, and those that a judge names in hindsight."""

import math
import re
from types import SimpleNamespace
from unittest import mock

import pytest
import stairs
import torch
from families import ACTIONS, GOALS, OBSERVATIONS, make_states, plain_score
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.goals import imagine_goals, state_embeddings
from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.runs import goals as runs_goals
from torchrl_glam.runs.config import RecipeConfig, SACGLAMConfig
from torchrl_glam.runs.environments import make_eval_envs, make_reference_env
from torchrl_glam.runs.goals import PursuedGoals
from torchrl_glam.runs.setting import Setting
from torchrl_glam.text import TokenizeText, describe_env, token_lengths

SIMPLE = {"num_objects": 3, "sequential": False, "max_steps": 10}
# Takes the first admissible action.
FIRST = TensorDictModule(lambda mask: mask.byte().argmax(-1), ["action_mask"], ["action"])


@pytest.fixture(scope="module")
def language():
    """The embedded model, its tokenizer and its trunk."""
    model, tokenizer = load_language_model("tiny")
    trunk = make_trunk(model, tokenizer).eval()
    return SimpleNamespace(model=model, tokenizer=tokenizer, trunk=trunk)


@pytest.fixture
def training_env(language):
    """Makes the environment of training, and what chooses its goals."""

    def make(config):
        setting = Setting(config)
        setting.settle(torch.device("cpu"), config.seed)
        goals = PursuedGoals(config, language.tokenizer, language.trunk)
        return setting.make_envs(language.tokenizer, goals), goals

    return make


@pytest.fixture
def judged(training_env):
    """The same where a judge names goals in hindsight."""

    def make(**settings):
        given = {"num_envs": 4, "env": SIMPLE, "hindsight_by": "judge", **settings}
        return training_env(SACGLAMConfig(**given))

    return make


def configured(goals="uniform", impossible=0.5, **settings):
    env = {**SIMPLE, "impossible": impossible} if impossible else SIMPLE
    return RecipeConfig(**{"num_envs": 4, "env": env, "goals": goals, **settings})


def made(language, *args, **kwargs):
    return PursuedGoals(configured(*args, **kwargs), language.tokenizer, language.trunk)


def played(env, steps=40, policy=None):
    torch.manual_seed(0)
    return env.rollout(steps, policy, break_when_any_done=False)


@pytest.mark.parametrize("impossible", [0.0, 0.8])
def test_uniform_goals_are_those_that_the_environment_draws_alone(
    training_env, language, impossible
):
    env, chosen = training_env(configured("uniform", impossible, seed=3))
    alone = PlaygroundTextEnv(4, **SIMPLE, impossible=impossible, seed=3)
    tokens = TokenizeText(language.tokenizer, **token_lengths(alone, language.tokenizer))
    steps, expected = played(env), played(TransformedEnv(alone, tokens))
    for key in ("goal_kind", "goal_tokens", "observation_tokens"):
        assert torch.equal(steps[key], expected[key])
    assert "goal_id" not in steps.keys() and chosen.sampler is None
    before = chosen.state_dict()
    chosen.update(steps)
    assert chosen.state_dict() == before
    assert before == {"sampler": None, "judge": None, "steps": 0, "counts": [0, 0, 0]}


def test_a_sampler_draws_uniformly_what_the_environment_does(language):
    """By kind, in the share of impossible goals that is asked for."""
    shares = {"progress": 0.8, "learned_progress": 0.8, "kind_progress": 1 / 3}  # of three kinds
    for name, expected in shares.items():
        sampler = made(language, name, 0.8).sampler
        share = (sampler.kinds[sampler.sample(4000)] == 4).float().mean()
        assert abs(share - expected) <= 5 * (expected * (1 - expected) / 4000) ** 0.5


def test_samplers_fit_the_length_of_a_run_and_its_rollouts(language):
    """Uniform draws fall eight times as fast as the run goes; predictions wait for two rollouts."""
    for update_every, every in ((32, 8), (512, 64)):
        settings = {"num_envs": 16, "update_every": update_every, "total_steps": 6400}
        config = configured("learned_progress", **settings)
        sampler = PursuedGoals(config, language.tokenizer, language.trunk).sampler
        assert (sampler.every, sampler.lag) == (every, 4 * every)
        config.env = {}  # 8,470 goals, of which a pool is read, and those of the last episodes
        large = PursuedGoals(config, language.tokenizer, language.trunk).sampler
        assert (large.every, large.lag) == (2 * every, 8 * every)
        sampler.updates = 6400 // 16
        assert sampler.exploration == pytest.approx(0.2 + 0.8 * math.exp(-8))


def test_predictions_are_made_from_a_first_state_of_every_goal(language, monkeypatch):
    """Imagined goals begin where the goals do that they were composed from."""
    embed = mock.Mock(side_effect=lambda _, states: torch.zeros(len(states), 2))
    monkeypatch.setattr(runs_goals, "state_embeddings", embed)
    chosen = made(language, "learned_progress", 0.8, imagined=40, hindsight_by="judge")
    [(_, states)], texts = [call.args for call in embed.mock_calls], chosen.sampler.goal_texts
    assert len(states) == len(texts) > 419
    lead = language.trunk.prompt.template.lead("goal")
    told = language.tokenizer.batch_decode(states["goal_tokens"], skip_special_tokens=True)
    assert told == [lead + text for text in texts]
    found = imagine_goals(texts[:419], 40)
    for index, text in enumerate(texts[419:], 419):
        origin = states[found[text]]
        assert torch.equal(states["observation_tokens"][index], origin["observation_tokens"])
        assert torch.equal(states["action_tokens"][index], origin["action_tokens"])
    assert len(states[:419]["observation_tokens"].unique(dim=0)) > 400  # scenes of their own


def test_training_pursues_what_the_sampler_draws(training_env):
    env, chosen = training_env(configured("progress"))
    drawn, plain = [], chosen.sampler.sample
    chosen.sampler.sample = lambda n: drawn.append(plain(n)) or drawn[-1]
    steps = played(env)
    begins = torch.cat((torch.ones(4, 1, dtype=torch.bool), steps["next", "done"][:, :-1, 0]), 1)
    pursued = [steps["goal_id"][:, t][begins[:, t]] for t in range(steps.shape[1])]
    assert torch.equal(torch.cat(pursued), torch.cat(drawn)[: begins.sum()])


def test_the_sampler_is_told_of_the_episodes_that_end_step_by_step(language):
    """Two instances, three steps: 7 is reached, 8 is not, and then 9 is."""
    told = []
    for name, hindsight in (("progress", False), ("progress+hindsight", True)):
        chosen = made(language, name)
        assert chosen.sampler.hindsight == hindsight
        chosen.sampler.update = lambda *given: told.append(
            [None if part is None else part.tolist() for part in given]
        )
        done = torch.tensor([[0, 1, 0], [0, 1, 1]]).bool().unsqueeze(-1)
        reward = torch.tensor([[0.0, 1, 0], [0, 0, 1]]).unsqueeze(-1)
        named = torch.full((2, 3, 2), -1)
        named[0, 1], named[1, 0, 0] = torch.tensor([7, 5]), 6
        after = {"done": done, "reward": reward, "hindsight": {"goal_id": named}}
        pursued = torch.tensor([[7, 7, 3], [8, 8, 9]])
        chosen.update(TensorDict({"goal_id": pursued, "next": after}, [2, 3]))
    ended = [([], []), ([7, 8], [True, False]), ([9], [True])]
    assert told[:3] == [[*episodes, None] for episodes in ended]
    reached = [[[-1, -1], [6, -1]], [[-1, 5], [-1, -1]], [[-1, -1], [-1, -1]]]  # 7 is told already
    assert told[3:] == [[*episodes, n] for episodes, n in zip(ended, reached, strict=True)]


def test_embeddings_are_those_of_the_actions_by_the_model_itself(language):
    """The mean by the policy and the maximum of the decoder's states after each candidate."""
    states, expected = make_states(language.tokenizer), []
    for goal, seen, actions in zip(GOALS, OBSERVATIONS, ACTIONS, strict=True):
        given = (language.model, language.tokenizer, goal, seen)
        with torch.no_grad():
            read = [plain_score(*given, action)[:2] for action in actions if action]
        scores, rows = (torch.stack(part) for part in zip(*read, strict=True))
        expected.append(torch.cat((scores.softmax(0) @ rows, rows.amax(0))))
    found = state_embeddings(language.trunk, states)(torch.tensor([2, 1, 2]))
    torch.testing.assert_close(found, torch.stack([expected[i] for i in (2, 1, 2)]))
    assert not found.requires_grad


def test_predictions_are_compared_with_episodes_of_each_kind(language, monkeypatch):
    chosen = made(language, "learned_progress", eval_episodes=5)
    env, ids, kinds = chosen._kind_env
    assert kinds.bincount().tolist() == [5, 5, 0, 0, 5]
    for _ in range(2):
        assert torch.equal(env.reset()["goal_kind"].long(), kinds)
    chosen.sampler.predict = lambda goal_ids: goal_ids / 1000
    success = {"success/grasp": 1.0, "success/grow": 0.5, "success/impossible": 0.0}
    monkeypatch.setattr(runs_goals, "evaluate", lambda *args, **kwargs: success)
    found = chosen.measure(None)
    told = [ids[kinds == kind].float().mean().item() / 1000 for kind in (0, 1, 4)]
    error = (abs(told[0] - 1) + abs(told[1] - 0.5) + told[2]) / 3
    assert found.pop("goals/error") == pytest.approx(error)
    names = ("grasp", "grow", "impossible")
    expected = {f"goals/predicted/{n}": t for n, t in zip(names, told, strict=True)}
    measured = {f"goals/measured/{n}": success[f"success/{n}"] for n in names}
    assert found == pytest.approx(expected | measured)
    assert made(language, "kind_progress").measure(None) == {}


def test_evaluations_have_no_impossible_goals_unless_they_are_asked_for(language):
    config = configured("progress", eval_episodes=3)
    config.eval_splits = {"train": {"split": "train"}, "all": {"split": "train", "impossible": 0.5}}
    envs = make_eval_envs(config, language.tokenizer)
    kinds = {name: describe_env(env).goal_kinds for name, env in envs.items()}
    assert "impossible" not in kinds["train"] and kinds["all"][-1] == "impossible"
    assert "impossible" not in make_reference_env(config).goal_kinds
    assert config.env["impossible"] == 0.5


def test_goals_that_are_chosen_have_no_prior(training_env):
    env, _ = training_env(SACGLAMConfig(num_envs=4, goals="progress", sampling="ratio+prior"))
    assert describe_env(env).goal_kind_prior is None


def table_of_floors(goal_sampler=None):
    """One game, without a batch, that is told which floor to reach."""
    given = {"goal_texts": stairs.FLOORS, "goal_kinds": ("near", "far"), "kind_of": stairs.is_far}
    return stairs.make_chosen(None, goal_sampler=goal_sampler, **given)


@pytest.mark.parametrize("goals", ["kind_progress+hindsight", "learned_progress"])
def test_single_instances_of_another_game_share_a_sampler(training_env, goals):
    config = configured(goals, 0.0, env_class=f"{__name__}:table_of_floors", eval_episodes=2)
    config.env, config.eval_splits = {}, {"train": {}}
    env, chosen = training_env(config)
    chosen.sampler.sample = lambda n: torch.full((n,), 3)
    steps = played(env, 12, FIRST)
    assert steps.shape == (4, 12) and (steps["goal_id"] == 3).all() and steps["goal_kind"].all()
    chosen.update(steps)
    assert chosen.sampler.updates == 12
    if goals == "learned_progress":
        env, ids, kinds = chosen._kind_env
        assert kinds.tolist() == [0, 0, 1, 1]
        assert torch.equal(env.reset()["goal_kind"].long(), kinds)
        found = chosen.measure(None)
        assert 0 <= found["goals/measured/near"] <= 1 and 0 < found["goals/predicted/far"] < 1


class Silent(PlaygroundTextEnv):
    """It keeps to itself what `lacks` names: an entry of its states, or an attribute."""

    def __init__(self, lacks, num_envs, **kwargs):
        super().__init__(num_envs, **kwargs)
        if lacks in self.observation_spec.keys(True):
            del self.observation_spec[lacks]
        else:
            setattr(self, lacks, None)
            self.goal_kind_ids = None


@pytest.mark.parametrize(
    ("key", "value", "lacks", "message"),
    [
        ("goals", "progress", "goal_texts", "goal_texts, a table of goals, and .*:Silent has none"),
        ("goals", "kind_progress", "goal_kind_ids", "goal_kind_ids, the kinds of its goals"),
        ("goals", "learned_progress", "goal_kind_ids", "goal_kind_ids, the kinds of its goals"),
        ("goals", "progress", "goal_id", "goal_id, and"),
        ("goals", "progress+hindsight", ("hindsight", "goal_id"), ".'hindsight', 'goal_id'., and"),
        ("hindsight_by", "judge", "goal_texts", "goal_texts, a table of goals"),
    ],
)
def test_an_environment_that_cannot_be_chosen_for_is_named(language, key, value, lacks, message):
    env = {**SIMPLE, "lacks": lacks}
    config = configured(env_class=f"{__name__}:Silent", **{"env": env, key: value})
    named = rf"{key} \({re.escape(value)}\) needs an environment that has "
    with pytest.raises(ValueError, match=named + message):
        PursuedGoals(config, language.tokenizer, language.trunk)


@pytest.mark.parametrize("goals", ["uniform", "progress", "kind_progress"])
def test_goals_are_exchanged_in_the_middle_of_a_run(training_env, goals):
    """Of 64 steps, after 32; a resumed run knows where it is."""
    config = configured(goals, 0.0, goal_words=["red", "blue|green"], total_steps=64)
    env, chosen = training_env(config)

    def words():
        texts = [chosen.sampler.goal_texts[i] for i in chosen.sampler.sample(60)]
        return {word for text in texts for word in text.split()} & {"red", "blue", "green"}

    steps = played(env, 7)
    chosen.update(steps)
    assert words() == {"red"}
    chosen.update(steps[:, :1])
    assert words() == {"blue", "green"}
    state, chosen = chosen.state_dict(), training_env(config)[1]
    assert words() == {"red"}
    chosen.load_state_dict(state)
    assert words() == {"blue", "green"}
    chosen.update(played(env, 20))
    assert words() == {"blue", "green"}


def test_goal_words_that_no_goal_has_are_named(language):
    for words, message in (("purple", "found in no goal"), ("(", "no regular expression: ")):
        with pytest.raises(ValueError, match=f"goal_words has .* {message}"):
            made(language, goal_words=["red", words])


# Goals named by a judge instead of the social partner, by the key `hindsight_by`


def named(row):
    return row[row >= 0].tolist()


def test_goals_are_written_as_a_partner_writes_them(judged):
    """Once an episode and never the one pursued, with tokens and kinds; texts are gone."""
    env, goals = judged()
    space, steps = PlaygroundTextEnv(1, **SIMPLE).goals, played(env, 12)
    pursued = steps["goal_id"].flatten().tolist()
    tokens = dict(zip(pursued, steps["goal_tokens"].flatten(0, 1).tolist(), strict=True))
    ids = sorted(tokens)[:3]
    odds = torch.full((4, 182), 0.9).index_fill_(1, torch.tensor(ids), 1.1)
    goals.judge.judge = mock.MagicMock(return_value=odds)  # who names them after every step
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


def test_the_judge_reads_what_was_played_and_learns_from_rewards_alone(judged):
    env, goals = judged()
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


def test_it_is_compared_with_the_partner(judged):
    """Of three goals named two are right; the partner named four."""
    env, goals = judged()
    steps = played(env, 1)
    ids = torch.full((4, 1, steps["next", "hindsight", "goal_id"].shape[-1]), -1)
    ids[0, 0, :3], ids[1, 0, 0] = torch.tensor([7, 8, 9]), 6
    steps["goal_id"] = torch.full((4, 1), 181)
    steps["next", "hindsight", "goal_id"] = ids
    judged_so = torch.tensor([[9, 7, -1], [-1, -1, -1], [7, -1, -1], [-1, -1, -1]])
    goals.judge._name = mock.Mock(return_value=judged_so)
    goals.judge(steps)
    assert goals.measure(None) == {"judge/precision": 2 / 3, "judge/recall": 2 / 4}
    assert goals.measure(None) == {}


def test_of_goals_with_equal_texts_the_first_is_named(judged):
    _, goals = judged(env={**SIMPLE, "impossible": 0.5})
    table = PlaygroundTextEnv(1, **SIMPLE, impossible=0.5).goals.texts
    assert goals.judge._told.sum(1).tolist() == [len(table) - len(set(table))] * 4
    assert not goals.judge._told[:, : len(set(table))].any()


def test_a_game_without_a_partner(judged):
    """Stairs that are told which floor to reach, and name nothing."""
    untaught = {"env_class": "stairs:make_chosen", "env": {"hindsight": None, "max_hindsight": 0}}
    untaught |= {"eval_splits": {"train": {}}, "sampling": "uniform"}
    env, goals = judged(**untaught)
    after = goals.judge(played(env, 12, FIRST))["next", "hindsight"]
    assert after["goal_id"].shape == (4, 12, 4) and (after["goal_id"] < 4).all()
    assert torch.equal(after["goal_id"] >= 0, after["kind"] == 0)
    assert goals.measure(None) == {}
    with pytest.raises(ValueError, match=r"hindsight \(true\) needs an environment that names"):
        judged(**untaught, hindsight_by="partner")


def test_imagined_goals_are_pursued_and_judged_and_taught_to_nobody(judged, language):
    """Behind the environment's 182 goals; the judge learns from the others' rewards."""
    env, goals = judged(imagined=300)
    table = goals.sampler.goal_texts
    known = PlaygroundTextEnv(1, **SIMPLE).goals
    assert table[:182] == known.texts and len(table) > 182 and len(set(table)) == len(table)
    for text, kind in zip(table, goals.sampler.kinds.tolist(), strict=True):
        assert known.kinds[kind] == text.split()[0].lower() or text not in known.texts
    steps, told = played(env, 12), []
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
