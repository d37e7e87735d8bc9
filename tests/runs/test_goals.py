"""The goals that training pursues, by the key `goals` of a configuration."""

import math
import re

import pytest
import stairs
import torch
from families import ACTIONS, GOALS, OBSERVATIONS, make_states, plain_score
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.envs import TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.goals import imagine_goals, state_embeddings
from torchrl_glam.runs import goals as runs_goals
from torchrl_glam.runs.config import RecipeConfig, SACGLAMConfig
from torchrl_glam.runs.config.base import GOALS as WAYS
from torchrl_glam.runs.environments import make_eval_envs, make_reference_env
from torchrl_glam.runs.goals import PursuedGoals
from torchrl_glam.text import TokenizeText, describe_env, token_lengths

SIMPLE = {"num_objects": 3, "sequential": False, "max_steps": 10}


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
    given = []
    monkeypatch.setattr(
        runs_goals,
        "state_embeddings",
        lambda _, states: given.append(states) or torch.zeros(len(states), 2),
    )
    settings = {"imagined": 40, "hindsight_by": "judge"}
    chosen = made(language, "learned_progress", 0.8, **settings)
    (states,), texts = given, chosen.sampler.goal_texts
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
    kinds = {
        n: describe_env(e).goal_kinds for n, e in make_eval_envs(config, language.tokenizer).items()
    }
    assert "impossible" not in kinds["train"] and kinds["all"][-1] == "impossible"
    assert "impossible" not in make_reference_env(config).goal_kinds
    assert config.env["impossible"] == 0.5


def test_bad_goals_are_refused_by_name(training_env):
    for name in WAYS:
        configured(name).check()
    for name in ("learning", "uniform+hindsight"):
        with pytest.raises(ValueError, match=rf"goals \({re.escape(name)}\) must be one of"):
            configured(name).check()
    given = SACGLAMConfig(env={**SIMPLE, "goal_sampler": "progress"})
    with pytest.raises(ValueError, match=r"env.goal_sampler cannot be given"):
        training_env(given)
    config = SACGLAMConfig(goals="progress", sampling="ratio+prior")
    with pytest.raises(ValueError, match=r"sampling \(ratio\+prior\) must be uniform, ratio or"):
        training_env(config)


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
    first = TensorDictModule(lambda mask: mask.byte().argmax(-1), ["action_mask"], ["action"])
    steps = played(env, 12, first)
    assert steps.shape == (4, 12) and (steps["goal_id"] == 3).all() and steps["goal_kind"].all()
    chosen.update(steps)
    assert chosen.sampler.updates == 12
    if goals == "learned_progress":
        env, ids, kinds = chosen._kind_env
        assert kinds.tolist() == [0, 0, 1, 1]
        assert torch.equal(env.reset()["goal_kind"].long(), kinds)
        found = chosen.measure(None)
        assert 0 <= found["goals/measured/near"] <= 1 and 0 < found["goals/predicted/far"] < 1


class Told(PlaygroundTextEnv):
    """It keeps to itself what `lacks` names."""

    def __init__(self, lacks, num_envs, **kwargs):
        super().__init__(num_envs, **kwargs)
        if lacks in ("goal_texts", "goal_kind_ids"):
            setattr(self, lacks, None)
            self.goal_kind_ids = None
        else:
            del self.observation_spec[eval(lacks)]


@pytest.mark.parametrize(
    ("key", "value", "lacks", "message"),
    [
        ("goals", "progress", "goal_texts", "goal_texts, a table of goals, and .*:Told has none"),
        ("goals", "kind_progress", "goal_kind_ids", "goal_kind_ids, the kinds of its goals"),
        ("goals", "learned_progress", "goal_kind_ids", "goal_kind_ids, the kinds of its goals"),
        ("goals", "progress", "'goal_id'", "goal_id, and"),
        (
            "goals",
            "progress+hindsight",
            "('hindsight', 'goal_id')",
            ".'hindsight', 'goal_id'., and",
        ),
        ("hindsight_by", "judge", "goal_texts", "goal_texts, a table of goals"),
    ],
)
def test_an_environment_that_cannot_be_chosen_for_is_named(language, key, value, lacks, message):
    config = configured(impossible=0.0, env_class=f"{__name__}:Told", **{key: value})
    config.env = {**SIMPLE, "lacks": lacks}
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
