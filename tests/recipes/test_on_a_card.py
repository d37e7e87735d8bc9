"""Whole recipes on a card that is pretended: the run that the CPU makes, number for number.

What is on the wrong side is refused there as on a card, at the first operation that puts it
together with the rest.
"""

import pytest
from forked_recipe import Recipe
from run_metrics import metrics

pytestmark = pytest.mark.slow

COMMON = [
    *("num_envs=8", "batch_size=16", "eval_every=64", "eval_episodes=16", "checkpoint_every=64"),
    *("critic_hidden_sizes=[16]", "loggers=[]", "autocast=false", "update_every=32"),
]
SETTINGS = {
    "sac_glam": [
        *("num_updates=2", "warmup_updates=1", "log_every=64", "capacity=600"),
        *("critic_input=observation", "env.max_steps=6"),
    ],
    "ppo_glam": [
        *("num_epochs=1", "log_every=32", "max_tokens_per_pass=512", "hindsight=all"),
        *("env=stairs:alone", "normalisation=token_mean"),
    ],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_that_was_broken_off_on_a_card_is_that_of_the_cpu(name, tmp_path):
    there, log = tmp_path / "card", tmp_path / "log"
    with Recipe(f"{name}.py") as recipe:
        small = [*COMMON, *SETTINGS[name]]
        cpu = ("device=cpu", f"output={tmp_path / 'cpu'}")
        recipe.succeed(*small, *cpu, "total_steps=128", log=log)
        for steps, where in ((64, "output"), (128, "resume")):
            options = ("device=cuda", f"{where}={there}", f"total_steps={steps}")
            recipe.succeed(*small, *options, log=log, card=True)
    rows = metrics(there)
    assert int(rows[-1]["updates"]) > 2 and rows == metrics(tmp_path / "cpu")
    assert (there / "model" / "agent.json").exists()
