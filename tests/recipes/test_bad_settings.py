"""Settings that cannot be: each is refused by name, soon, and leaves nothing behind.

The recipe runs in this process, where it is imported already, as its own program would: arguments
in, exit status and last line out.
"""

import gc
import re
import runpy
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = {
    "sac_glam": "total_steps=32 num_envs=8 update_every=8 batch_size=16 num_updates=1 "
    "warmup_updates=1 capacity=600 log_every=8",
    "ppo_glam": "total_steps=32 num_envs=8 update_every=32 batch_size=16 num_epochs=1 log_every=32",
}
COMMON = "device=cpu eval_every=0 eval_episodes=1 loggers=[] checkpoint_every=0"
CPU_SECONDS = 10

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
]
OF_PPO = [
    *("seed=-1", "output=FILE", "resume=EMPTY", "num_envs=three", "+foo=1", "env=nowhere:Env"),
    *("normalize_advantage=2", "hindsight=true", "clip_center=behaviour hindsight=none"),
]
CASES = [("sac_glam", case) for case in SHARED] + [("ppo_glam", case) for case in OF_PPO]


@pytest.fixture(scope="module", autouse=True)
def _fast_collection():
    """What is imported by now need not be looked through after every case."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _in_time():
    """Ends a case that computes for too long: it was not refused at once."""

    def give_up(*_):
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, earlier)


def run_here(recipe, overrides, monkeypatch, capfd):
    """The exit status and the last line of a run in this process."""
    path = str(RECIPES / f"{recipe}.py")
    monkeypatch.setattr(sys, "argv", [path, *overrides])
    status = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        status = end.code
    gc.collect()  # what a process would let go of at its end
    return status, capfd.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(("recipe", "case"), CASES, ids=lambda value: value)
def test_bad_settings_are_refused_by_name(recipe, case, tmp_path, monkeypatch, capfd):
    for name in ("wandb", "mlflow"):
        if name in case and find_spec(name) is not None:
            pytest.skip(f"{name} is installed here")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a file")
    (tmp_path / "holds_model" / "model").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    given = re.sub("EMPTY|FILE|HOLDS_MODEL", lambda match: match[0].lower(), case)
    overrides = f"output=runs/run {SMALL[recipe]} {COMMON}".split()
    overrides += given.split()
    key = re.match(r"[+~]?(?:env\.|eval_splits\.\w+\.)?(\w+)", case)[1]
    key = "(language_)?model" if key == "model" else key
    status, last = run_here(recipe, overrides, monkeypatch, capfd)
    assert status == 1, last
    assert re.search(rf"\b{key}\b", last), last
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("modle=tiny", "there is no key 'modle'; did you mean model?"),
        ("model.rank=3", "model (the language model) has no key 'model.rank': it offers model=fl"),
        ("replay=nothing", "Available options in 'replay': balanced hindsight no_hindsight unif"),
        ("gama=0.5", "there is no key 'gama'; did you mean gamma?"),
    ],
)
def test_what_there_is_instead_is_told(case, told, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    _, last = run_here("sac_glam", [case], monkeypatch, capfd)
    assert told in " ".join(last.split())


def test_good_settings_are_not_refused(tmp_path, monkeypatch, capfd):
    """Or the cases above would show nothing."""
    signal.setitimer(signal.ITIMER_PROF, 0)  # it has all the time that a run takes
    monkeypatch.chdir(tmp_path)
    overrides = f"output=run {SMALL['sac_glam']} {COMMON} max_grad_norm=inf".split()
    status, last = run_here("sac_glam", overrides, monkeypatch, capfd)
    assert status == 0, last
    assert (tmp_path / "run" / "metrics.csv").exists()
