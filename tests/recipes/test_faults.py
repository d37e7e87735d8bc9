"""A run that is killed, and resumed.

``pytest tests/recipes/test_faults.py --kills 100`` kills more often than the default 5.
"""

import os
import random
import signal
import time

import pytest
from forked_recipe import Recipe
from run_metrics import metrics, saved_steps

pytestmark = pytest.mark.slow

STEPS_PER_KILL = 40
SMALL = (
    "num_envs=8 batch_size=16 num_updates=2 update_every=8 warmup_updates=2 log_every=40 "
    "eval_every=160 eval_episodes=4 critic_hidden_sizes=[16] loggers=[] capacity=600 "
    "checkpoint_every=16 device=cpu"
).split()


def beginning(run):
    """How a run is started or resumed, be it killed before its first checkpoint."""
    return f"resume={run}" if (run / "config.yaml").exists() else f"output={run}"


def test_a_run_killed_at_random_moments_ends_with_the_same_metrics(tmp_path, request):
    """It is long enough to be killed as often as asked for before it ends."""
    wanted, moments = request.config.getoption("kills"), random.Random(0)
    recipe, arguments = Recipe("sac_glam.py"), [*SMALL, f"total_steps={STEPS_PER_KILL * wanted}"]
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    recipe.succeed(*arguments, f"output={unbroken}")
    for _ in range(wanted):
        process = recipe.start(*arguments, beginning(run))
        # while it starts, or some steps later, in the middle of one or of a checkpoint
        if moments.random() > 0.2:
            step = max(saved_steps(run), default=0) + moments.uniform(1, STEPS_PER_KILL / 3)
            deadline = time.monotonic() + 60
            while max(saved_steps(run), default=0) < step and time.monotonic() < deadline:
                time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        os.kill(process, signal.SIGKILL)
        assert recipe.wait() == -signal.SIGKILL, recipe.said
    recipe.succeed(*arguments, beginning(run))
    assert metrics(run) == metrics(unbroken)
