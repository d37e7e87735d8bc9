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

# What a configuration refuses by itself is in runs/test_config.py, folders in
# runs/test_run_folder.py, environments in runs/test_environments.py: here is one of each.
OF_SAC = [
    *("seed=-1", "output=FILE", "resume=EMPTY", "num_envs=three", "+foo=1", "env=nowhere:Env"),
    *("device=gpu", "device=cpu:5", "model=no/such/folder", "model=no/such-model"),
    *("foo=1", "~gamma", "hindsight=2", "chat_template=true", "loggers=[csv,mlflow]"),
    *("env.num_objects=97", "eval_splits.test.text=false", "observation_length=3"),
    *("target_entropy=5", "goals=progress env=corridor:Corridor"),
]
# Of the other recipes: "recipe settings: message", which names the first setting's key if none is
# given.
COMMON = "output=runs/run total_steps=32 num_envs=8 batch_size=16 device=cpu eval_every=0 "
COMMON += "eval_episodes=1 loggers=[] checkpoint_every=0"
GIVEN = {
    "sac_glam": f"{COMMON} update_every=8 num_updates=1 warmup_updates=1 capacity=600 log_every=8",
    "ppo_glam": f"{COMMON} update_every=32 num_epochs=1 log_every=32",
    "pretrain": "env=corridor:Corridor output=model results=results num_steps=32",
    "evaluate": "model=tiny episodes=4 output=out",
    "watch": "episodes=2",
    "play": "",
    "offline_sac": "stored --out out",
    "compare": "--out out label",
}
OTHERS = """
ppo_glam seed=-1
ppo_glam goals=kind_progress env=corridor:Corridor
sac_glam model.rank=3: model (the language model) has no key 'model.rank': it offers model=fl
sac_glam replay=nothing: Available options in 'replay': balanced hindsight no_hindsight pursued unif
sac_glam gama=0.5: there is no key 'gama'; did you mean gamma?
sac_glam hydra.foo=1: To append to your config use +hydra.foo=1
sac_glam figure=9: figure=9 is a sweep of many runs: write --multirun +figure=9
pretrain exercises=playground
pretrain vocabulary=1: action_length
pretrain imitate_steps=128: imitate_steps (128) must be 0: corridor:Corridor knows
pretrain num_steps=1e10: 'float' could not be converted to Integer
pretrain output=FILE
evaluate colour=red
evaluate output=FILE: output ('file') is a file: give a folder
evaluate objects=[1]: objects ([1]): num_objects (1) is too small
evaluate splits=[both]: split (both)
evaluate device=meta: device ('meta') cannot be used on this machine
watch model=tiny output=a.avi: output (a.avi) must end in .html
watch env.num_objects=null: env.num_objects (None) must be a whole number
watch agent=a beside=a: beside (a) must be another agent than the first
watch agent=nowhere: folder ('nowhere') is not there
play goal='Grow\u00a0red\u00a0loin': the nearest are 'Grow red lion'
offline_sac gama=0.5: there is no key 'gama'; did you mean gamma?
offline_sac num_updates=4: num_updates is not read here: give --updates
offline_sac --updates 49: warmup_updates (50) must be at most --updates (49)
offline_sac --updates 1700 warmup_updates=1700 n_step=1: n_step (1) must stay what it was (3)
offline_sac n_step=x
offline_sac --updates 0: --updates (0) must be at least 1
compare stored --threshold 80: --threshold ([80.0]) is a success, above 0 and at most 1
"""
CASES = [*(f"sac_glam {case}" for case in OF_SAC), *OTHERS.strip().splitlines()]


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """What all recipes import, which need not be looked through after every case."""
    for recipe in (*GIVEN, "peft"):
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


@pytest.mark.parametrize("case", CASES)
def test_bad_settings_are_refused_by_name(case, unplayed, tmp_path):
    if "mlflow" in case and find_spec("mlflow") is not None:
        pytest.skip("mlflow is installed here")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "empty").mkdir()
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "config.yaml").write_text("{env: {size: 3}, eval_splits: {train: {}}}")
    (tmp_path / "stored" / "metrics.csv").write_text("step,seconds\n")
    before = sorted(tmp_path.rglob("*"))
    command, _, message = case.partition(": ")
    command = command.replace("FILE", "file").replace("EMPTY", "empty")
    recipe, *overrides = command.split(" ")
    last = " ".join(unplayed(recipe, *GIVEN[recipe].split(), *overrides).split())
    if message:
        assert message in last
    else:
        key = re.match(r"[+~]?(?:env\.|eval_splits\.\w+\.)?(\w+)", overrides[0])[1]
        assert re.search(rf"\b(language_)?{key}\b", last), last
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "a file"


def test_good_settings_are_not_refused(succeeds, tmp_path):
    """Or the cases above would show nothing."""
    succeeds("sac_glam", *GIVEN["sac_glam"].split(), "output=run", "max_grad_norm=inf")
    assert (tmp_path / "run" / "metrics.csv").exists()
