"""Configurations of the recipes: files, types and ranges."""

import inspect
import math
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from sac_glam import make_sampler
from torchrl.data import RandomSampler

from torchrl_glam.envs import PlaygroundTextEnv, TextEnvWrapper
from torchrl_glam.models import load_language_model, load_tokenizer
from torchrl_glam.replay import GoalBalancedSampler, GoalKindSampler, HindsightRatioSampler
from torchrl_glam.runs.config import (
    PPOGLAMConfig,
    RecipeConfig,
    SACGLAMConfig,
    SACGLAMRayConfig,
    register,
)
from torchrl_glam.runs.config.pretrain import PretrainConfig
from torchrl_glam.runs.config.viewing import EvaluateConfig
from torchrl_glam.runs.environments import import_env, make_env
from torchrl_glam.text import describe_env

FILES = Path(__file__).parents[2] / "recipes" / "config"
RECIPES = {"sac_glam": SACGLAMConfig, "ppo_glam": PPOGLAMConfig}
SCHEMAS = {**RECIPES, "pretrain": PretrainConfig}
for recipe, schema in SCHEMAS.items():
    register(recipe, schema, FILES)


def load(name, *overrides, recipe="sac_glam") -> RecipeConfig:
    with initialize_config_dir(str(FILES / recipe), version_base=None):
        return OmegaConf.to_object(compose(name, overrides=list(overrides)))


@pytest.mark.parametrize("recipe", SCHEMAS)
def test_defaults_of_the_class_are_those_of_quickstart(recipe):
    config = load("quickstart", f"output=runs/{recipe}", recipe=recipe)
    assert asdict(config) == asdict(SCHEMAS[recipe]())


@pytest.mark.parametrize("recipe", SCHEMAS)
def test_every_key_is_explained_once_and_what_may_change_are_keys(recipe):
    if recipe == "pretrain":
        files = [FILES / recipe / "quickstart.yaml", FILES / "env" / "playground.yaml"]
    else:
        own = {"sac_glam": ["algorithm/sac", "replay/hindsight"], "ppo_glam": ["algorithm/ppo"]}
        names = ["run/default", "model/tiny", "env/playground", *own[recipe]]
        files = [FILES / f"{name}.yaml" for name in names]
    explained = []
    for file in files:
        lines = file.read_text().splitlines()
        keys = [i for i, line in enumerate(lines) if line[:1].isalpha() and ":" in line]
        explained += [lines[i].split(":")[0] for i in keys if lines[i - 1][:1] == "#"]
    known = {key.name for key in fields(SCHEMAS[recipe])}
    assert not known - set(explained)
    if recipe != "pretrain":
        assert len(explained) == len(set(explained)) and known > {*SCHEMAS[recipe]().may_change}


# Tables 1 and 3 of SAC-GLAM.
TASK = "output=run env.num_objects=6 env.sequential=true env.max_steps=16 load_in_4bit=true "
TASK += "language_model=google/flan-t5-base gamma=0.99 lr_trunk=1e-4 lr_heads=1e-4 batch_size=256"
PAPERS = {
    "sac_glam": "total_steps=400000 num_envs=32 critic_hidden_sizes=[1024,1024] update_every=32 "
    "num_updates=2 n_step=3 alpha_init=0.05 target_entropy=0.01 "
    "hindsight_ratio=0.5 capacity=100000",
    "ppo_glam": "objective=clip update_every=2048 num_epochs=16 entropy_coeff=0.01 "
    "critic_coeff=0.5 lmbda=0.99 clip_epsilon=0.2 max_grad_norm=0.5",
}


@pytest.mark.parametrize("recipe", PAPERS)
def test_paper_has_the_values_of_the_paper(recipe):
    config = load("paper", "output=run", recipe=recipe)
    config.check()
    assert config == load("paper", *TASK.split(), *PAPERS[recipe].split(), recipe=recipe)


def test_without_hindsight_the_entropy_is_as_in_appendix_c():
    config = load("paper", "hindsight=false")
    config.check()
    assert (config.alpha_init, config.target_entropy) == (0.005, 0.0)
    config.total_steps = 224
    with pytest.raises(ValueError, match=r"batch_size \(256\) must be at most total_steps \(224\)"):
        config.check()


@pytest.mark.parametrize("recipe", RECIPES)
def test_sequential_plays_the_papers_task_with_the_embedded_model(recipe):
    config, paper = load("sequential", recipe=recipe), load("paper", recipe=recipe)
    config.check()
    task = ("env_class", "env", "eval_splits", "num_envs")
    assert config.pick(*task) == paper.pick(*task)
    assert config.language_model == "tiny"


def test_the_embedded_model_is_that_of_its_shape_and_the_papers_task():
    tiny, paper = load("tiny", recipe="pretrain"), load("paper")
    tiny.check()
    assert (tiny.env_class, tiny.env) == (paper.env_class, paper.env)
    assert set(tiny.eval_splits) == {"train", "test", "simple"}
    model, _ = load_language_model("tiny")
    shape = tiny.pick("d_model", "d_ff", "num_heads", "num_layers", "num_decoder_layers")
    assert shape.items() <= model.config.to_dict().items()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["paper_large", "qwen"])
def test_larger_models_learn_as_in_the_paper(name, recipe):
    larger, paper = load(name, recipe=recipe), load("paper", recipe=recipe)
    assert larger.gradient_checkpointing and larger.load_in_4bit
    assert larger.max_tokens_per_pass <= paper.max_tokens_per_pass
    own = ("output", "language_model", "gradient_checkpointing", "max_tokens_per_pass")
    assert replace(larger, **paper.pick(*own)) == paper
    larger.check()


@pytest.mark.parametrize("word", ["true", "false", "auto"])
def test_truth_values_of_the_command_line_are_words(word):
    for recipe in ("sac_glam", "pretrain"):
        config = load("quickstart", f"autocast={word}", recipe=recipe)
        config.check()
        assert config.autocast == word


def describe(config, **options):
    return describe_env(make_env(config, load_tokenizer("tiny"), **options))


def test_hindsight_needs_goals_that_are_named_and_aligned_goals_to_know_which_are_sub_goals():
    ids = ("goal_id", ("hindsight", "goal_id"))
    config = PPOGLAMConfig(num_envs=1, hindsight="aligned")
    config.check_game(describe(config, keep=ids))
    with pytest.raises(ValueError, match=r"hindsight \(aligned\) needs .* writes no \['goal_id', "):
        config.check_game(describe(config))
    with pytest.raises(ValueError, match=r"hindsight \(aligned\) must be none or all, as the env"):
        config.check_game(replace(describe(config, keep=ids), is_subgoal=None))
    silent = describe_env(PlaygroundTextEnv(num_envs=1, text=False))
    for config in (PPOGLAMConfig(hindsight="all"), SACGLAMConfig()):
        config.check()
        with pytest.raises(ValueError, match=r"goals reached, and this one writes no \[\('hin"):
            config.check_game(silent)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_entropy": 1.7}, r"target_entropy \(1.7\) must be in \[0, 1.60944\]"),
        ({"capacity": 639}, r"capacity \(639\) must be at least 640: 32 instances"),
    ],
)
def test_what_does_not_fit_the_environment_is_named(settings, message):
    """Three objects, so five actions; ten steps of 32 instances, and as much hindsight."""
    config = SACGLAMConfig(**settings)
    config.check()
    game = describe(SACGLAMConfig(num_envs=1))
    with pytest.raises(ValueError, match=message):
        config.check_game(game)
    config = SACGLAMConfig(capacity=640)
    config.check()
    config.check_game(game)


# By configuration: what is expected, and values that are not so.
REFUSED = {
    RecipeConfig: [("be partner without hindsight", {"hindsight_by": "judge"})],
    SACGLAMConfig: [
        ("be in [0, 1)", {"munchausen": 1.0}),
        ("be in (0, 1]", {"tau": 0.0}),
        ("be in (0, 1]", {"tau": math.nan}),
        ("be in [0, 1]", {"lr_end": 2.0, "exploration": 1.1, "target_entropy_weight": -0.1}),
        ("be in [0, 1]", {"hindsight_ratio_end": 1.5, "token_noise": -0.1}),
        ("be in [0, 4.29497e+09]", {"seed": 2**32}),
        ("be in [0, 1e+06]", {"memory": -1}),
        ("be in [1, 1e+06]", {"eval_episodes": 0, "action_length": 0}),
        ("be in [1, 1e+09]", {"capacity": 10**13}),
        ("be at least 0", {"eval_every": -8, "target_entropy": -1.0}),
        ("be at least 0 and finite", {"lr_heads": math.inf}),
        ("be at least 1", {"lora_rank": 0, "n_step": 0, "max_tokens_per_pass": 0}),
        ("be above 0 and finite", {"alpha_end": 0.0}),
        ("be above 0; inf for no", {"max_grad_norm": math.nan}),
        ("be true or false", {"gradient_checkpointing": 2}),
        ("be at most 64 numbers", {"critic_hidden_sizes": [16, -1]}),
        ("be some of ('csv', 'tensorboard'", {"loggers": ["csv", "log"]}),
        ("not be empty", {"output": " "}),
        ("have a key train", {"eval_splits": {"test": {}}}),
        ("have keys without /", {"eval_splits": {"train": {}, "new/hard": {}}}),
        ("be one of", {"autocast": "maybe"}),
        ("be one of", {"goals": "uniform+hindsight", "hindsight_by": "oracle"}),
        ("be one of ('uniform', 'ratio', 'prior'", {"sampling": "half"}),
        ("be one of ('error', 'head'", {"long_texts": "middle"}),
        ("be one of ('sum', 'token_mean'", {"normalisation": "mean"}),
        ("be one of ('observation-act", {"critic_input": "action"}),
        ("be at most the 1600 updates", {"warmup_updates": 10**6}),
        ("be at least batch_size (128)", {"capacity": 100}),
        ("be a multiple of num_envs (32)", {"update_every": 33}),
        ("be a multiple of update_every (32)", {"log_every": 100}),
        ("be 0 without hindsight_by=judge", {"imagined": 9}),
    ],
    PPOGLAMConfig: [
        ("be one of ('clip', 'kl')", {"objective": "trpo"}),
        ("be one of ('none', 'all', 'aligned')", {"hindsight": "some"}),
        ("be one of ('one', 'behaviour')", {"clip_center": "zero"}),
        ("be one when hindsight is", {"clip_center": "behaviour"}),
        ("be in (0, 1)", {"clip_epsilon": 1.0}),
        ("be in [0, 1]", {"lmbda": 1.1}),
        ("be above 0 and finite", {"kl_target": 0.0}),
        ("be at least 0", {"critic_coeff": math.inf, "entropy_coeff": math.nan}),
        ("be at least 1", {"num_epochs": 0}),
        ("be at most update_every (512)", {"batch_size": 4096}),
        ("be partner without hindsight", {"hindsight_by": "judge"}),
    ],
    SACGLAMRayConfig: [
        ("be uniform: collectors end", {"goals": "progress"}),
        ("be []: collectors end", {"goal_words": ["red"]}),
        ("be partner: collectors play", {"hindsight_by": "judge"}),
        ("be at least 1", {"num_collectors": 0}),
        ("be at least num_collectors times num_updates (16)", {"max_policy_lag": 3}),
        ("be above 0", {"collector_cpus": 0.0, "collector_timeout": math.nan}),
        ("not be empty", {"ray_address": " "}),
    ],
    PretrainConfig: [
        ("be one of ('game', 'playground')", {"exercises": "plans"}),
        ("be in [0, 4.29497e+09]", {"seed": -1}),
        ("be in [1, 1e+06]", {"batch_size": 10**10}),
        ("be in [1, 1e+08]", {"num_steps": 10**10}),
        ("be in [1, 1000]", {"num_layers": 10**8}),
        ("be in [1, 6]", {"questions": 9}),
        ("be in (0, 1]", {"decay": 0.0}),
        ("be 0, or at least a batch (128)", {"imitate_steps": 127}),
        ("be above 0", {"lr_embeddings": math.nan, "max_grad_norm": 0.0}),
    ],
    EvaluateConfig: [
        ("be at least 1", {"max_tokens_per_pass": 0}),
        ("be in [1, 1e+06]", {"episodes": 10**10}),
        ("be one of (None, 'error', 'head', 'tail')", {"long_texts": "middle"}),
        ("have at least one entry", {"splits": []}),
        ("be a folder, or a list", {"agent": [["a"]]}),
        ("be a folder, or a list of folders that differ", {"agent": ["a", "b/../a/"]}),
    ],
}
REFUSALS = [
    (kind, key, value, expected)
    for kind, rows in REFUSED.items()
    for expected, settings in rows
    for key, value in settings.items()
]


@pytest.mark.parametrize(("kind", "key", "value", "expected"), REFUSALS)
def test_values_out_of_range_are_named(kind, key, value, expected):
    with pytest.raises(ValueError, match=re.escape(f"{key} ({value}) must {expected}")):
        kind(**{key: value}).check()


def test_settings_that_do_not_fit_together_or_with_torchrun_are_named(monkeypatch):
    too_large = r"d_model \(100000000\), d_ff \(128\), num_layers \(3\), num_de.* weights"
    with pytest.raises(ValueError, match=too_large):
        PretrainConfig(d_model=10**8).check()
    goals = {"hindsight": "aligned", "hindsight_by": "judge", "imagined": 9}
    with pytest.raises(ValueError, match=r"imagined \(9\) must be 0 with hindsight=aligned"):
        PPOGLAMConfig(**goals).check()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ValueError, match="start the recipe without it; num_collectors says"):
        SACGLAMRayConfig().check()


@pytest.mark.parametrize(
    ("overrides", "kind", "settings"),
    [
        ({}, HindsightRatioSampler, {"ratio": 0.5}),
        ({"sampling": "uniform"}, RandomSampler, {}),
        ({"hindsight": False}, RandomSampler, {}),
        ({"sampling": "prior"}, GoalKindSampler, {"ratio": None, "prior": [0.75, 0.25]}),
        ({"sampling": "prior"}, GoalKindSampler, {"prior": None, "num_kinds": 2}),
        ({"sampling": "ratio+prior", "hindsight_ratio": 0.2}, GoalKindSampler, {"ratio": 0.2}),
        ({"sampling": "prior+goals"}, GoalBalancedSampler, {"ratio": None}),
        ({"sampling": "ratio+prior+goals"}, GoalBalancedSampler, {"ratio": 0.5}),
        ({"sampling": "ratio+kinds+goals"}, GoalBalancedSampler, {"prior": [0.5, 0.5]}),
    ],
)
def test_sampler_is_the_one_asked_for(overrides, kind, settings):
    prior = None if "num_kinds" in settings else (3, 1)
    game = SimpleNamespace(goal_kinds=("a", "b"), goal_kind_prior=prior)
    sampler = make_sampler(SACGLAMConfig(**overrides), game)
    assert type(sampler) is kind
    assert {name: getattr(sampler, name) for name in settings} == settings


@pytest.mark.parametrize("option", sorted(file.stem for file in (FILES / "env").glob("*.yaml")))
def test_every_environment_replaces_the_other_whole(option):
    config = load("quickstart", f"env={option}", "++env_class=a:B")
    file = OmegaConf.to_container(OmegaConf.load(FILES / "env" / f"{option}.yaml"))
    assert (config.env, config.eval_splits) == (file["env"], file["eval_splits"])


def test_the_file_of_a_configuration_has_the_last_word():
    """An environment says what suits it over quickstart; what is the paper's, `paper` says."""
    store = ConfigStore.instance()
    node = {"env_class": "a:B", "eval_episodes": 7, "gamma": 0.5}
    store.store(group="env", name="tested", node=node, package="_global_")
    assert load("quickstart", "env=tested").gamma == 0.5
    assert load("quickstart", "env=tested", "gamma=0.6").gamma == 0.6
    config = load("paper", "env=tested")
    assert (config.gamma, config.eval_episodes) == (0.99, 7)


GAMES = [f for f in sorted((FILES / "env").glob("*.yaml")) if "envs.games" in f.read_text()]


@pytest.mark.parametrize("file", GAMES, ids=lambda file: file.stem)
def test_a_game_has_a_schedule_and_its_keys_are_arguments(file):
    config = OmegaConf.to_container(OmegaConf.load(file))
    assert config.keys() <= {field.name for field in fields(RecipeConfig)}
    schedule = load("games", f"env={file.stem}")
    schedule.check()
    assert (schedule.env_class, schedule.long_texts) == (config["env_class"], "head")
    kept = schedule.target_entropy, schedule.target_entropy_weight
    assert kept == (None, 0.5), "some states offer two candidates"
    try:
        make = import_env(config["env_class"])
    except ImportError as error:
        pytest.skip(str(error))
    parameters = (inspect.signature(of).parameters for of in (make, TextEnvWrapper.__init__))
    taken = set().union(*parameters)
    for given in (config["env"], *config["eval_splits"].values()):
        assert given.keys() <= taken - {"num_envs", "seed", "device"}
