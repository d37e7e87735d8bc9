"""Configurations of the recipes: files, types and ranges."""

import inspect
import math
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
def test_every_key_is_explained_once(recipe):
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
    missing = {key.name for key in fields(SCHEMAS[recipe])} - set(explained)
    assert not missing
    assert recipe == "pretrain" or len(explained) == len(set(explained))


# Tables 1 and 3 of SAC-GLAM.
TASK = "output=run env.num_objects=6 env.sequential=true env.max_steps=16 load_in_4bit=true "
TASK += "language_model=google/flan-t5-base gamma=0.99 lr_trunk=1e-4 lr_heads=1e-4 batch_size=256"
PAPERS = {
    "sac_glam": "total_steps=400000 num_envs=32 critic_hidden_sizes=[1024,1024] update_every=32 "
    "num_updates=2 n_step=3 lr_alpha=2e-3 alpha_init=0.05 target_entropy=0.01 "
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


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_sequential_plays_the_papers_task_with_the_embedded_model(recipe):
    config, paper = load("sequential", recipe=recipe), load("paper", recipe=recipe)
    config.check()
    for key in ("env_class", "env", "eval_splits", "num_envs"):
        assert getattr(config, key) == getattr(paper, key)
    assert config.language_model == "tiny"


def test_the_embedded_model_is_that_of_its_shape_and_the_papers_task():
    tiny, paper = load("tiny", recipe="pretrain"), load("paper")
    tiny.check()
    assert (tiny.env_class, tiny.env) == (paper.env_class, paper.env)
    assert set(tiny.eval_splits) == {"train", "test", "simple"}
    model, _ = load_language_model("tiny")
    shape = ("d_model", "d_ff", "num_heads", "num_layers", "num_decoder_layers")
    assert {key: getattr(tiny, key) for key in shape} == {
        key: getattr(model.config, key) for key in shape
    }


@pytest.mark.parametrize(
    "option", ["alfworld", "babyai", "jericho", "scienceworld", "textworld", "textworld_express"]
)
def test_games_is_a_schedule_for_any_of_them(option):
    config = load("games", f"env={option}")
    config.check()
    assert option in config.env_class and config.long_texts == "head"
    assert 0 < config.target_entropy < math.log(2), "some states offer two candidates"


LARGER = ("language_model", "gradient_checkpointing", "max_tokens_per_pass")


@pytest.mark.parametrize("recipe", ["sac_glam", "ppo_glam"])
@pytest.mark.parametrize("name", ["paper_large", "qwen"])
def test_larger_models_learn_as_in_the_paper(name, recipe):
    larger = load(name, recipe=recipe)
    config, paper = asdict(larger), asdict(load("paper", recipe=recipe))
    differ = {key for key in paper if config[key] != paper[key]} - {"output"}
    assert differ <= set(LARGER) and config["gradient_checkpointing"] and config["load_in_4bit"]
    assert config["max_tokens_per_pass"] <= paper["max_tokens_per_pass"]
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
    ("settings", "unknown", "message"),
    [
        ({"target_entropy": 1.7}, {}, r"target_entropy \(1.7\) must be in \[0, 1.60944\]"),
        ({"capacity": 639}, {}, r"capacity \(639\) must be at least 640: 32 instances"),
        (
            {"sampling": "prior"},
            {"goal_kind_prior": None},
            r"sampling \(prior\) must be uniform, ratio or .*, as the environment does not say",
        ),
    ],
)
def test_what_does_not_fit_the_environment_is_named(settings, unknown, message):
    """Three objects, so five actions; ten steps of 32 instances, and as much hindsight."""
    config = SACGLAMConfig(**settings)
    config.check()
    game = replace(describe(SACGLAMConfig(num_envs=1)), **unknown)
    with pytest.raises(ValueError, match=message):
        config.check_game(game)
    config = SACGLAMConfig(capacity=640)
    config.check()
    config.check_game(game)


BAD_OF = {}
BAD_OF[SACGLAMConfig] = [
    ("munchausen", 1.0, r"munchausen \(1.0\) must be in \[0, 1\)"),
    ("tau", 0.0, r"tau \(0.0\) must be in \(0, 1\]"),
    ("tau", float("nan"), r"tau \(nan\) must be in"),
    ("lr_end", 2.0, r"lr_end \(2.0\) must be in \[0, 1\]"),
    ("exploration", 1.1, r"exploration \(1.1\) must be in \[0, 1\]"),
    ("seed", 2**32, r"seed \(4294967296\) must be in"),
    ("lora_rank", 0, r"lora_rank \(0\) must be at least 1"),
    ("max_grad_norm", float("nan"), r"max_grad_norm \(nan\) must be above 0; inf for no"),
    ("autocast", "maybe", r"autocast \(maybe\) must be one of"),
    ("gradient_checkpointing", 2, r"gradient_checkpointing \(2\) must be true or false"),
    ("critic_hidden_sizes", [16, -1], r"critic_hidden_sizes \(\[16, -1\]\) must be at most 64"),
    ("loggers", ["csv", "log"], r"loggers \(\['csv', 'log'\]\) must be some of"),
    ("output", " ", r"output \( \) must not be empty"),
    ("capacity", 10**13, r"capacity \(10000000000000\) must be in \[1, 1e\+09\]"),
    ("eval_episodes", 0, r"eval_episodes \(0\) must be in \[1, 1e\+06\]"),
    ("eval_every", -8, r"eval_every \(-8\) must be at least 0"),
    ("target_entropy", -1.0, r"target_entropy \(-1.0\) must be at least 0"),
    ("alpha_end", 0.0, r"alpha_end \(0.0\) must be above 0 and finite"),
    ("eval_splits", {"test": {}}, r"eval_splits \({'test': {}}\) must have a key train"),
    ("action_length", 0, r"action_length \(0\) must be in \[1, 1e\+06\]"),
    ("n_step", 0, r"n_step \(0\) must be at least 1"),
    ("warmup_updates", 10**6, r"warmup_updates \(1000000\) must be at most the 1600 updates"),
    ("capacity", 100, r"capacity \(100\) must be at least batch_size \(128\)"),
    ("update_every", 33, r"update_every \(33\) must be a multiple of num_envs \(32\)"),
    ("log_every", 100, r"log_every \(100\) must be a multiple of update_every \(32\)"),
    ("max_tokens_per_pass", 0, r"max_tokens_per_pass \(0\) must be at least 1"),
    ("sampling", "half", r"sampling \(half\) must be one of \('uniform', 'ratio', 'prior'"),
    ("long_texts", "middle", r"long_texts \(middle\) must be one of \('error', 'head'"),
    ("memory", -1, r"memory \(-1\) must be in \[0, 1e\+06\]"),
    ("normalisation", "mean", r"normalisation \(mean\) must be one of \('sum', 'token_mean'"),
    ("critic_input", "action", r"critic_input \(action\) must be one of \('observation-act"),
    ("lr_heads", float("inf"), r"lr_heads \(inf\) must be"),
]
BAD_OF[PPOGLAMConfig] = [
    ("objective", "trpo", r"objective \(trpo\) must be one of \('clip', 'kl'\)"),
    ("hindsight", "some", r"hindsight \(some\) must be one of \('none', 'all', 'aligned'\)"),
    ("clip_center", "zero", r"clip_center \(zero\) must be one of \('one', 'behaviour'\)"),
    ("clip_center", "behaviour", r"clip_center \(behaviour\) must be one when hindsight is"),
    ("clip_epsilon", 1.0, r"clip_epsilon \(1.0\) must be in \(0, 1\)"),
    ("kl_target", 0.0, r"kl_target \(0.0\) must be above 0 and finite"),
    ("critic_coeff", float("inf"), r"critic_coeff \(inf\) must be .* finite"),
    ("entropy_coeff", float("nan"), r"entropy_coeff \(nan\) must be at least 0"),
    ("lmbda", 1.1, r"lmbda \(1.1\) must be in \[0, 1\]"),
    ("num_epochs", 0, r"num_epochs \(0\) must be at least 1"),
    ("batch_size", 4096, r"batch_size \(4096\) must be at most update_every \("),
]
BAD_OF[SACGLAMRayConfig] = [
    ("goals", "progress", r"goals \(progress\) must be uniform: collectors end"),
    ("goal_words", ["red"], r"goal_words \(\['red'\]\) must be \[\]: collectors end"),
    ("hindsight_by", "judge", r"hindsight_by \(judge\) must be partner: collectors play"),
    ("num_collectors", 0, r"num_collectors \(0\) must be at least 1"),
    ("max_policy_lag", 3, r"max_policy_lag \(3\) must be at least num_collectors times"),
    ("collector_cpus", 0.0, r"collector_cpus \(0.0\) must be above 0"),
    ("collector_timeout", float("nan"), r"collector_timeout \(nan\) must be above 0"),
    ("ray_address", " ", r"ray_address \( \) must not be empty"),
]
BAD_OF[PretrainConfig] = [
    ("exercises", "plans", r"exercises \(plans\) must be one of \('game', 'playground'\)"),
    ("batch_size", 10**10, r"batch_size \(10000000000\) must be in \[1, 1e\+06\]"),
    ("num_steps", 10**10, r"num_steps \(10000000000\) must be in \[1, 1e\+08\]"),
    ("questions", 9, r"questions \(9\) must be in \[1, 5\]"),
    ("imitate_steps", 127, r"imitate_steps \(127\) must be 0, or at least a batch \(128\)"),
    ("lr_embeddings", float("nan"), r"lr_embeddings \(nan\) must be above 0"),
    ("max_grad_norm", 0.0, r"max_grad_norm \(0.0\) must be above 0"),
    ("decay", 0.0, r"decay \(0.0\) must be in \(0, 1\]"),
    ("num_layers", 10**8, r"num_layers \(100000000\) must be in \[1, 1000\]"),
    ("d_model", 10**8, r"d_model \(100000000\), d_ff \(128\), num_layers \(3\), num_de.* weights"),
    ("seed", -1, r"seed \(-1\) must be in"),
]
BAD_OF[EvaluateConfig] = [
    ("max_tokens_per_pass", 0, r"max_tokens_per_pass \(0\) must be at least 1"),
    ("episodes", 10**10, r"episodes \(10000000000\) must be in"),
    ("long_texts", "middle", r"long_texts \(middle\) must be one of"),
    ("splits", [], r"splits \(\[\]\) must have at least one entry"),
    ("agent", [["a"]], r"agent \(\[\['a'\]\]\) must be a folder, or a list"),
]
BAD = [(kind, *row) for kind, rows in BAD_OF.items() for row in rows]


@pytest.mark.parametrize(("kind", "key", "value", "message"), BAD)
def test_values_out_of_range_are_named(kind, key, value, message):
    with pytest.raises(ValueError, match=message):
        kind(**{key: value}).check()


def test_collectors_of_several_learners_are_refused(monkeypatch):
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
        ({"sampling": "ratio+prior", "hindsight_ratio": 0.2}, GoalKindSampler, {"ratio": 0.2}),
        ({"sampling": "prior+goals"}, GoalBalancedSampler, {"ratio": None}),
        ({"sampling": "ratio+prior+goals"}, GoalBalancedSampler, {"ratio": 0.5}),
        ({"sampling": "ratio+kinds+goals"}, GoalBalancedSampler, {"prior": [0.5, 0.5]}),
    ],
)
def test_sampler_is_the_one_asked_for(overrides, kind, settings):
    game = SimpleNamespace(goal_kinds=("a", "b"), goal_kind_prior=(3, 1))
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
def test_keys_of_a_game_are_arguments(file):
    config = OmegaConf.to_container(OmegaConf.load(file))
    assert config.keys() <= {field.name for field in fields(RecipeConfig)}
    try:
        make = import_env(config["env_class"])
    except ImportError as error:
        pytest.skip(str(error))
    taken = {
        *inspect.signature(make).parameters,
        *inspect.signature(TextEnvWrapper.__init__).parameters,
    }
    for given in (config["env"], *config["eval_splits"].values()):
        assert given.keys() <= taken - {"num_envs", "seed", "device"}
