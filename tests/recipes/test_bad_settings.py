"""Settings that cannot be: each is refused by name before any play, and leaves nothing behind.

Recipes run in this process, where they are imported already, as their own programs would:
arguments in, exit status and last line out.
"""

import gc
import importlib
import re
from importlib.util import find_spec
from unittest import mock

import pytest
from torchrl.envs import EnvBase

pytestmark = pytest.mark.slow

SMALL = {
    "sac_glam": "total_steps=32 num_envs=8 update_every=8 batch_size=16 num_updates=1 "
    "warmup_updates=1 capacity=600 log_every=8",
    "ppo_glam": "total_steps=32 num_envs=8 update_every=32 batch_size=16 num_epochs=1 log_every=32",
}
COMMON = "device=cpu eval_every=0 eval_episodes=1 loggers=[] checkpoint_every=0"

# The key that the message must name is the first one given. Ranges of keys: test_config.py.
SHARED = [
    *("seed=-1", "device=gpu", "output=", "resume=", "model=", "model=no/such/folder"),
    *("hindsigth=false", "resume=EMPTY", "resume=nowhere", "output=FILE", "output=HOLDS_MODEL"),
    *("total_steps=33", "num_envs=three", "env.max_steps=0", "env.max_steps=40000"),
    *("env.num_objects=1", "env.num_objects=97", "env.size=3", "replay=nothing", "model.rank=3"),
    *("env=nowhere", "env=json:loads", "env=nowhere:Env", "env_class=PlaygroundTextEnv"),
    *("eval_splits.test.text=false", "observation_length=3", "load_in_4bit=2", "hindsight=2"),
    *("chat_template=true", "critic_hidden_sizes=[16,-1]", "gamma=nan", "lr_heads=inf"),
    *("max_grad_norm=0", "loggers=[nothing]", "loggers=[wandb]", "loggers=[csv,mlflow]"),
    *("+foo=1", "foo=1", "~gamma", "target_entropy=5", "warmup_updates=1000", "capacity=159"),
    *("device=cpu:5", "num_envs=10000000000000", "eval_episodes=10000000000000"),
    *("capacity=10000000000000", "goal_length=10000000000000", "env.sequential=maybe"),
    *("critic_hidden_sizes=[10000000000000]", "model=no/such-model"),
    *("goals=learning", "goals=progress env=corridor:Corridor", "goal_sampler=progress"),
    *("env.goal_sampler=progress", "env.impossible=2"),
]
OF_PPO = [
    *("seed=-1", "output=FILE", "resume=EMPTY", "num_envs=three", "+foo=1", "env=nowhere:Env"),
    *("goals=kind_progress env=corridor:Corridor",),
    *("normalize_advantage=2", "hindsight=true", "clip_center=behaviour hindsight=none"),
]
# Of the other recipes: "recipe settings", and what the message must hold if that is not the first
# setting's key.
GIVEN = {
    "pretrain": "env=corridor:Corridor output=model results=results num_steps=32",
    "evaluate": "model=tiny episodes=4 output=out",
    "watch": "episodes=2",
    "play": "",
    "offline_sac": "stored --out out",
    "compare": "--out out label",
}
OTHERS = """
pretrain exercises=plans
pretrain exercises=playground
pretrain vocabulary=0
pretrain vocabulary=1: action_length
pretrain imitate_steps=127: imitate_steps (127) must be 0, or at least a batch (128)
pretrain imitate_steps=128: imitate_steps (128) must be 0: corridor:Corridor knows
pretrain num_steps=1e10: 'float' could not be converted to Integer
pretrain num_steps=10000000000
pretrain num_batches=10000000000
pretrain batch_size=10000000000
pretrain entropy_states=10000000000
pretrain episodes=10000000000
pretrain num_layers=100000000
pretrain d_model=100000000
pretrain d_ff=100000000
pretrain num_heads=0
pretrain lr=inf
pretrain lr_embeddings=nan
pretrain max_grad_norm=0
pretrain decay=0
pretrain questions=9
pretrain seed=-1
pretrain output=FILE
pretrain results=FILE
pretrain output=
pretrain env=nowhere:Env
pretrain hindsight=false
evaluate agent=nowhere: agent (nowhere) must be null with model (tiny)
evaluate episodes=0
evaluate episodes=1e10
evaluate episodes=10000000000
evaluate colour=red
evaluate objects=[1]: objects ([1]): num_objects (1) is too small
evaluate objects=[300]: objects ([300]): num_objects (300) must be at most 96
evaluate objects=[3] env=corridor:Corridor: objects ([3]): env (corridor:Corridor): got an unexp
evaluate objects=[]
evaluate splits=[]
evaluate splits=[train,train]
evaluate splits=[both]: split (both)
evaluate modes=[greedy,greedy]
evaluate output=
evaluate output=FILE: output ('file') is a file: give a folder
evaluate device=cpu:5
evaluate device=meta: device ('meta') cannot be used on this machine
evaluate env.sequential=maybe
evaluate model=no/such-model: model ('no/such-model') could not be loaded
watch agent=a model=tiny: agent (a) must be null with model (tiny)
watch model=tiny episodes=0: episodes (0)
watch model=tiny output=a.avi: output (a.avi) must end in .html
watch model=tiny output=FILE/page.html: output ('file') is a file: give a folder
watch model=tiny longest=0: longest
watch long_texts=middle: long_texts (middle) must be one of
watch goal_length=0: goal_length (0) must be in [1,
watch env.num_objects=null: env.num_objects (None) must be a whole number
watch agent=a beside=a: beside (a) must be another agent than the first
watch agent=nowhere: folder ('nowhere') is not there
watch agent=''
play max_tokens_per_pass=0
play device=cpu:5
play goal='Grow\u00a0red\u00a0loin': the nearest are 'Grow red lion'
play split=both
play env.colour=red: got an unexpected keyword argument 'colour'; it takes ['num_envs'
offline_sac env.size=6: env ({'size': 6}) must stay what it was ({'size': 3})
offline_sac gama=0.5: there is no key 'gama'; did you mean gamma?
offline_sac gamma=2
offline_sac num_updates=4: num_updates is not read here: give --updates
offline_sac resume=auto: resume is not read here: give --updates
offline_sac --updates 49: warmup_updates (50) must be at most --updates (49)
offline_sac --updates 1700 warmup_updates=1700 n_step=1: n_step (1) must stay what it was (3)
offline_sac n_step=x
offline_sac --updates 0: --updates (0) must be at least 1
offline_sac hindsight=maybe
compare nowhere: folder ('nowhere') holds no metrics.csv
compare stored: has no rows yet
compare stored --threshold 80: --threshold ([80.0]) is a success, above 0 and at most 1
"""
CASES = [("sac_glam", case) for case in SHARED] + [("ppo_glam", case) for case in OF_PPO]


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """What all recipes import, which need not be looked through after every case."""
    for recipe in ("sac_glam", "ppo_glam", *GIVEN, "peft"):
        importlib.import_module(recipe)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def unplayed(refused, monkeypatch):
    """``refused``, for what must be so before any environment takes a step."""
    step = mock.Mock(side_effect=AssertionError("a step was played"))

    def run(name, *arguments):
        if name != "pretrain":  # it plays to see which words there are
            monkeypatch.setattr(EnvBase, "step", step)
        return refused(name, *arguments)

    return run


@pytest.mark.parametrize(("recipe", "case"), CASES, ids=lambda value: value)
def test_bad_settings_are_refused_by_name(recipe, case, unplayed, tmp_path):
    for name in ("wandb", "mlflow"):
        if name in case and find_spec(name) is not None:
            pytest.skip(f"{name} is installed here")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a file")
    (tmp_path / "holds_model" / "model").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    given = re.sub("EMPTY|FILE|HOLDS_MODEL", lambda match: match[0].lower(), case)
    overrides = f"output=runs/run {SMALL[recipe]} {COMMON}".split()
    overrides += given.split()
    key = re.match(r"[+~]?(?:env\.|eval_splits\.\w+\.)?(\w+)", case)[1]
    key = "(language_)?model" if key == "model" else key
    last = unplayed(recipe, *overrides)
    assert re.search(rf"\b{key}\b", last), last
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("line", OTHERS.strip().splitlines())
def test_other_recipes_refuse_by_name(line, unplayed, tmp_path):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "config.yaml").write_text("{env: {size: 3}, eval_splits: {train: {}}}")
    (tmp_path / "stored" / "metrics.csv").write_text("step,seconds\n")
    before = sorted(tmp_path.rglob("*"))
    command, _, message = line.partition(": ")
    recipe, *overrides = command.replace("FILE", "file").split(" ")
    last = unplayed(recipe, *GIVEN[recipe].split(), *overrides)
    if message:
        assert message in last
    else:
        key = overrides[0].partition("=")[0].removeprefix("env.")
        assert re.search(rf"\b{key}\b", last), last
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "a file"


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("modell=tiny", "there is no key 'modell'; did you mean model?"),
        ("model.rank=3", "model (the language model) has no key 'model.rank': it offers model=fl"),
        ("replay=nothing", "Available options in 'replay': balanced hindsight no_hindsight unif"),
        ("gama=0.5", "there is no key 'gama'; did you mean gamma?"),
        ("hydra.foo=1", "To append to your config use +hydra.foo=1"),
        ("figure=9", "figure=9 is a sweep of many runs: write --multirun +figure=9"),
    ],
)
def test_what_there_is_instead_is_told(case, told, unplayed):
    assert told in " ".join(unplayed("sac_glam", case).split())


def test_good_settings_are_not_refused(succeeds, tmp_path):
    """Or the cases above would show nothing."""
    overrides = f"output=run {SMALL['sac_glam']} {COMMON} max_grad_norm=inf".split()
    succeeds("sac_glam", *overrides)
    assert (tmp_path / "run" / "metrics.csv").exists()
