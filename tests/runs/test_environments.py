"""Environments that a configuration names: how they are found, made, and told what they lack."""

import sys

import pytest
import torch
from corridor import Corridor
from families import make_model
from torchrl.envs import SerialEnv

from torchrl_glam.envs import GoalSpace
from torchrl_glam.models import load_tokenizer
from torchrl_glam.runs.config import RecipeConfig, SACGLAMConfig
from torchrl_glam.runs.environments import import_env, make_bare_env, make_env, make_eval_envs
from torchrl_glam.runs.setting import Setting


def config_of(env_class, env=None, **settings):
    settings = {"eval_splits": {"train": {}}, "num_envs": 3, "eval_episodes": 2} | settings
    return SACGLAMConfig(env_class=env_class, env=env or {}, **settings)


def make(env_class, env=None, **settings):
    return make_bare_env(config_of(env_class, env, **settings), 3, 0)


PLAYGROUND = "torchrl_glam.envs:PlaygroundTextEnv"


def test_a_module_may_lie_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_game_of_mine.py").write_text("from corridor import Corridor as Mine")
    assert import_env("a_game_of_mine:Mine") is Corridor


def test_a_game_that_needs_what_is_not_installed_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_game_that_needs.py").write_text("import no_such_game")
    says = r"a_game_that_needs:Env\): it needs 'no_such_game', which is not installed"
    with pytest.raises(ImportError, match=says):
        import_env("a_game_that_needs:Env")
    with pytest.raises(ImportError, match=r"there is no module 'no_such', neither installed nor"):
        import_env("no_such.game:Env")


@pytest.mark.parametrize(
    ("path", "package", "extra"),
    [
        ("babyai:make_babyai", "gymnasium", "babyai"),
        ("babyai:make_babyai", "minigrid", "babyai"),
        ("textworld:make_textworld", "textworld", "textworld"),
        ("textworld_express:make_textworld_express", "textworld_express", "textworld-express"),
        ("scienceworld:make_scienceworld", "scienceworld", "scienceworld"),
        ("jericho:make_jericho", "jericho", "jericho"),
        ("alfworld:make_alfworld", "alfworld", "alfworld"),
    ],
)
def test_a_game_without_its_package_names_the_extra(path, package, extra, monkeypatch):
    imported = ("torchrl_glam.envs.games.", f"{package}.")
    for name in [name for name in sys.modules if name.startswith(imported)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ImportError, match=rf"pip install 'torchrl_glam\[{extra}\]'"):
        import_env(f"torchrl_glam.envs.games.{path}")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("corridor:", r"env_class \(corridor:\) must be module:Name"),
        ("corridor:PLACES", r"env \(corridor:PLACES\) must be a torchrl.envs.EnvBase, or a func"),
        ("fractions:Fraction", r"env \(fractions:Fraction\) must be a torchrl.envs.EnvBase"),
    ],
)
def test_a_name_that_makes_no_environment_is_refused(path, message):
    with pytest.raises(ValueError, match=message):
        import_env(path)


@pytest.mark.parametrize(
    ("env_class", "env", "message"),
    [
        ("corridor:Corridor", {"names_goals": "maybe"}, r"env.names_goals \(maybe\) must be true"),
        (PLAYGROUND, {"max_steps": True}, r"env.max_steps \(True\) must be a whole number"),
        (PLAYGROUND, {"impossible": "x"}, r"env.impossible \(x\) must be a number"),
        ("corridor:Corridor", {"length": 3}, r"unexpected keyword .*'length'; .* \['num_envs', 'n"),
        ("corridor:needs", {}, r"corridor:needs\): missing a required argument: 'length'"),
        ("corridor:needs", {"length": 2}, r"env \(corridor:needs\) made a int, expected a torchrl"),
        ("corridor:alone", {"num_envs": 2}, r"env.num_envs cannot be given"),
        ("corridor:pair", {}, r"batch size \[3, 2\], expected \[3\]: take an argument num_envs"),
    ],
)
def test_arguments_that_do_not_fit_are_named(env_class, env, message, monkeypatch):
    monkeypatch.setattr("corridor.needs", lambda num_envs, length: length, raising=False)
    monkeypatch.setattr("corridor.pair", lambda: Corridor(2), raising=False)
    with pytest.raises(ValueError, match=message):
        make(env_class, env)


def test_what_takes_a_number_of_instances_is_made_once_and_others_one_by_one():
    whole, alone = make("corridor:Corridor"), make("corridor:alone")
    assert type(whole) is Corridor and type(alone) is SerialEnv
    assert whole.batch_size == alone.batch_size == (3,)
    assert whole.reset()["goal"].shape == alone.reset()["goal"].shape


def test_instances_that_are_made_alone_differ_and_a_seed_repeats_them():
    config = config_of("corridor:alone")
    kinds = [make_bare_env(config, 16, seed).reset()["goal_kind"] for seed in (5, 5, 6)]
    assert 0 < kinds[0].sum() < 16
    assert kinds[0].equal(kinds[1]) and not kinds[0].equal(kinds[2])


def test_a_split_changes_the_arguments_that_it_names():
    splits = {"train": {}, "paid": {"step_reward": 0.5}}
    config = config_of("corridor:Corridor", {"names_goals": True}, eval_splits=splits)
    envs = make_eval_envs(config, load_tokenizer("tiny"))
    assert list(envs) == ["train", "paid"]
    assert [env.base_env.step_reward for env in envs.values()] == [0.0, 0.5]
    assert [env.base_env.names_goals for env in envs.values()] == [True, True]
    assert [env.base_env.batch_size for env in envs.values()] == [(2,), (2,)]
    config.eval_splits["train"] = {"names_goals": False}  # which training plays too
    message = r"env.names_goals \(True\) is False by .* eval_splits.train.names"
    with pytest.raises(ValueError, match=message):
        make_bare_env(config, 3, 0)


def test_only_entries_that_are_read_are_kept():
    env = make_env(config_of("corridor:Corridor"), load_tokenizer("tiny"))
    tokens = {"goal_tokens", "observation_tokens", "action_tokens"}
    assert {*env.observation_spec.keys()} == tokens | {"action_mask", "goal_kind", "reached"}


def test_lengths_are_the_configurations_then_the_environments_then_the_usual(tokenizer):
    def widths(config):
        spec = make_env(config, tokenizer).observation_spec
        slots = ("goal", "observation", "action")
        return [spec[f"{slot}_tokens"].shape[-1] for slot in slots]

    assert widths(config_of("corridor:Corridor")) == [24, 160, 8]
    assert widths(config_of("corridor:Corridor", goal_length=5)) == [5, 160, 8]
    texts = [f" {text}" for text in GoalSpace("train", sequential=False).texts]
    goal = max(map(len, tokenizer(texts, add_special_tokens=False).input_ids))
    assert widths(RecipeConfig(num_envs=1))[0] == goal
    assert widths(RecipeConfig(num_envs=1, action_length=goal + 1))[::2] == [goal, goal + 1]


def test_long_texts_are_an_error_or_cut(tokenizer):
    short = {"observation_length": 3}
    with pytest.raises(ValueError, match=r"observation_length \(3\) is too small"):
        make_env(SACGLAMConfig(**short), tokenizer).reset()
    with pytest.warns(UserWarning, match="of which the tail is kept"):
        env = make_env(SACGLAMConfig(long_texts="tail", **short), tokenizer)
        assert env.reset()["observation_tokens"].shape == (32, 3)


def test_a_memory_widens_what_is_kept_and_is_given_outside_of_the_environment(tokenizer):
    env = make_env(config_of("corridor:Corridor", memory=50, observation_length=20), tokenizer)
    steps = env.rollout(20, break_when_any_done=False)
    shown = (steps["observation_tokens"] != tokenizer.pad_token_id).sum(-1)
    assert steps["observation_tokens"].shape[-1] >= 70 and 50 < shown.max() <= 70
    with pytest.raises(ValueError, match=r"env.memory cannot be given: give memory=50 instead"):
        make("stairs:make", {"memory": 50})


def test_a_memory_beyond_what_the_model_reads_is_refused(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    make_model("gpt2", tokenizer, n_positions=64).save_pretrained(tmp_path)
    settings = [Setting(RecipeConfig(language_model=str(tmp_path), memory=m)) for m in (63, 64)]
    for setting in settings:
        setting.settle(torch.device("cpu"), 0)
    settings[0].load_model()
    with pytest.raises(ValueError, match=r"memory \(64\) must be below 64, as the model has 64"):
        settings[1].load_model()
