"""Environments that a configuration names: how they are found, made, and told what they lack."""

import sys

import pytest
import torch
from corridor import Corridor
from families import make_model
from torchrl.envs import SerialEnv

from torchrl_glam.envs import GoalSpace
from torchrl_glam.runs.config import RecipeConfig, SACGLAMConfig
from torchrl_glam.runs.environments import import_env, make_bare_env, make_env, make_eval_envs
from torchrl_glam.runs.setting import Setting


def config_of(env_class, env=None, **settings):
    settings = {"eval_splits": {"train": {}}, "num_envs": 3, "eval_episodes": 2} | settings
    return SACGLAMConfig(env_class=env_class, env=env or {}, **settings)


def make(env_class, env=None, **settings):
    return make_bare_env(config_of(env_class, env, **settings), 3, 0)


PLAYGROUND = "torchrl_glam.envs:PlaygroundTextEnv"


def test_a_module_may_lie_in_the_current_folder_and_says_what_is_not_installed(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_game_of_mine.py").write_text("from corridor import Corridor as Mine")
    assert import_env("a_game_of_mine:Mine") is Corridor
    (tmp_path / "a_game_that_needs.py").write_text("import no_such_game")
    says = r"a_game_that_needs:Env\): it needs 'no_such_game', which is not installed"
    with pytest.raises(ImportError, match=says):
        import_env("a_game_that_needs:Env")
    with pytest.raises(ImportError, match=r"there is no module 'no_such', neither installed nor"):
        import_env("no_such.game:Env")


OF_ITS_OWN_NAME = ("textworld", "textworld_express", "scienceworld", "jericho", "alfworld")


@pytest.mark.parametrize(
    ("package", "game"),
    [("gymnasium", "babyai"), ("minigrid", "babyai"), *((name, name) for name in OF_ITS_OWN_NAME)],
)
def test_a_game_without_its_package_names_the_extra(package, game, monkeypatch):
    imported = ("torchrl_glam.envs.games.", f"{package}.")
    for name in [name for name in sys.modules if name.startswith(imported)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    extra = game.replace("_", "-")
    with pytest.raises(ImportError, match=rf"pip install 'torchrl_glam\[{extra}\]'"):
        import_env(f"torchrl_glam.envs.games.{game}:make_{game}")


@pytest.mark.parametrize(
    ("env_class", "env", "message"),
    [
        ("corridor:", {}, r"env_class \(corridor:\) must be module:Name"),
        (
            "corridor:PLACES",
            {},
            r"env \(corridor:PLACES\) must be a torchrl.envs.EnvBase, or a func",
        ),
        ("fractions:Fraction", {}, r"env \(fractions:Fraction\) must be a torchrl.envs.EnvBase"),
        ("corridor:Corridor", {"names_goals": "maybe"}, r"env.names_goals \(maybe\) must be true"),
        (PLAYGROUND, {"max_steps": True}, r"env.max_steps \(True\) must be a whole number"),
        (PLAYGROUND, {"impossible": "x"}, r"env.impossible \(x\) must be a number"),
        ("corridor:Corridor", {"length": 3}, r"unexpected keyword .*'length'; .* \['num_envs', 'n"),
        ("corridor:needs", {}, r"corridor:needs\): missing a required argument: 'length'"),
        ("corridor:needs", {"length": 2}, r"env \(corridor:needs\) made a int, expected a torchrl"),
        ("corridor:alone", {"num_envs": 2}, r"env.num_envs cannot be given"),
        (PLAYGROUND, {"goal_sampler": "progress"}, r"env.goal_sampler cannot be given"),
        ("stairs:make", {"memory": 50}, r"env.memory cannot be given: give memory=50 instead"),
        ("corridor:pair", {}, r"batch size \[3, 2\], expected \[3\]: take an argument num_envs"),
    ],
)
def test_what_makes_no_environment_is_refused(env_class, env, message, monkeypatch):
    monkeypatch.setattr("corridor.needs", lambda num_envs, length: length, raising=False)
    monkeypatch.setattr("corridor.pair", lambda: Corridor(2), raising=False)
    with pytest.raises(ValueError, match=message):
        make(env_class, env)


def test_what_takes_a_number_of_instances_is_made_once_and_others_one_by_one():
    """Those differ, and a seed repeats them."""
    whole, alone = make("corridor:Corridor"), make("corridor:alone")
    assert type(whole) is Corridor and type(alone) is SerialEnv
    assert whole.batch_size == alone.batch_size == (3,)
    assert whole.reset()["goal"].shape == alone.reset()["goal"].shape
    config = config_of("corridor:alone")
    kinds = [make_bare_env(config, 16, seed).reset()["goal_kind"] for seed in (5, 5, 6)]
    assert 0 < kinds[0].sum() < 16
    assert kinds[0].equal(kinds[1]) and not kinds[0].equal(kinds[2])


def test_a_split_changes_the_arguments_that_it_names(tokenizer):
    splits = {"train": {}, "paid": {"step_reward": 0.5}}
    config = config_of("corridor:Corridor", {"names_goals": True}, eval_splits=splits)
    envs = make_eval_envs(config, tokenizer)
    assert list(envs) == ["train", "paid"]
    assert [env.base_env.step_reward for env in envs.values()] == [0.0, 0.5]
    assert [env.base_env.names_goals for env in envs.values()] == [True, True]
    assert [env.base_env.batch_size for env in envs.values()] == [(2,), (2,)]
    config.eval_splits["train"] = {"names_goals": False}  # which training plays too
    message = r"env.names_goals \(True\) is False by .* eval_splits.train.names"
    with pytest.raises(ValueError, match=message):
        make_bare_env(config, 3, 0)


def test_only_entries_that_are_read_are_kept(tokenizer):
    env = make_env(config_of("corridor:Corridor"), tokenizer)
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


def test_long_texts_are_cut_where_the_configuration_says_so(tokenizer):
    config = SACGLAMConfig(long_texts="tail", observation_length=3)
    with pytest.warns(UserWarning, match="of which the tail is kept"):
        states = make_env(config, tokenizer).reset()
    assert states["observation_tokens"].shape == (32, 3)


def test_a_memory_widens_what_is_kept(tokenizer):
    env = make_env(config_of("corridor:Corridor", memory=50, observation_length=20), tokenizer)
    steps = env.rollout(20, break_when_any_done=False)
    shown = (steps["observation_tokens"] != tokenizer.pad_token_id).sum(-1)
    assert steps["observation_tokens"].shape[-1] >= 70 and 50 < shown.max() <= 70


def test_a_memory_beyond_what_the_model_reads_is_refused(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    make_model("gpt2", tokenizer, n_positions=64).save_pretrained(tmp_path)

    def load(memory):
        setting = Setting(RecipeConfig(language_model=str(tmp_path), memory=memory))
        setting.settle(torch.device("cpu"), 0)
        setting.load_model()

    load(63)
    with pytest.raises(ValueError, match=r"memory \(64\) must be below 64, as the model has 64"):
        load(64)
