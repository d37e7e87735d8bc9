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

# What every recipe has. The key that the message must name is the first one given.
SHARED = [
    *("seed=-1", "seed=4294967296", "device=gpu", "output=", "resume=", "model="),
    *("model=no/such/folder", "hindsigth=false"),
    *("resume=EMPTY", "resume=nowhere", "output=FILE", "output=HOLDS_MODEL"),
    *("total_steps=0", "total_steps=33", "num_envs=0", "num_envs=three", "env.max_steps=0"),
    *("env.max_steps=40000", "env.num_objects=1", "env.num_objects=97", "env.size=3"),
    *("replay=nothing", "model.rank=3", "env=nowhere", "env=json:loads"),
    *("env=nowhere:Env", "env_class=PlaygroundTextEnv", "eval_splits.test.text=false"),
    *(
        "goal_length=0",
        "observation_length=3",
        "load_in_4bit=2",
        "gradient_checkpointing=2",
    ),
    *("chat_template=2", "chat_template=true"),
    "lora_rank=0",
    *("autocast=maybe", "normalisation=mean", "critic_hidden_sizes=[0]"),
    *("critic_hidden_sizes=[16,-1]", "gamma=1.5", "gamma=nan", "update_every=33", "batch_size=0"),
    *("max_tokens_per_pass=0", "lr_heads=-1", "lr_heads=inf"),
    *("max_grad_norm=-1", "max_grad_norm=0", "max_grad_norm=nan"),
    *("eval_every=-8", "eval_episodes=0", "log_every=0", "log_every=3"),
    "checkpoint_every=3",
    *("loggers=[nothing]", "loggers=[wandb]", "loggers=[csv,mlflow]"),
    *("+foo=1", "foo=1", "~gamma"),
]
# Those that pass through what each recipe writes for itself.
OF_BOTH = [
    *("seed=-1", "output=FILE", "resume=EMPTY", "num_envs=three", "max_grad_norm=-1"),
    *("max_grad_norm=0", "max_grad_norm=nan", "loggers=[nothing]", "+foo=1", "env.num_objects=1"),
    *("total_steps=33", "env=nowhere:Env"),
]
OF_SAC = [
    *(
        "critic_input=action",
        "n_step=0",
        "tau=0",
        "lr_end=2",
        "munchausen=1",
        "tau=nan",
        "alpha_init=0",
        "alpha_init=inf",
    ),
    *("target_entropy=5", "target_entropy=inf", "num_updates=0", "warmup_updates=-1"),
    *("warmup_updates=1000", "lr_trunk=inf", "lr_alpha=nan"),
    *("separate_optimizers=2", "hindsight=2"),
    "sampling=half",
    *("hindsight_ratio=1.5", "capacity=8"),
    *("capacity=159",),
]
OF_PPO = [
    *("objective=trpo", "clip_epsilon=1", "kl_coeff=-1", "kl_coeff=inf", "entropy_coeff=inf"),
    *("critic_coeff=inf", "critic_coeff=nan", "kl_target=0", "kl_target=inf", "lmbda=1.1"),
    *("normalize_advantage=2", "num_epochs=0", "lr_trunk=inf", "hindsight=true"),
    *("clip_center=zero", "clip_center=behaviour hindsight=none", "batch_size=64"),
]
CASES = [("sac_glam", case) for case in SHARED + OF_SAC]
CASES += [("ppo_glam", case) for case in OF_BOTH + OF_PPO]


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
    key = re.match(r"[+~]?(?:env\.|eval_splits\.\w+\.)?(\w+)", case)[1].replace(
        "lora_", "lora[_.]"
    )  # as peft groups them
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
