"""Updates of two processes against those of one on all rows, and failures of one of them."""

from functools import partial

import pytest
import torch
from forked_processes import run_processes
from torch import nn
from torchrl.objectives import SoftUpdate

from torchrl_glam.objectives import (
    ClippedAdam,
    GradientReducer,
    SharedTrunkOptimizer,
    UpdateFailedError,
)

from . import test_ppo as ppo
from . import toy

UPDATES, ROWS = 20, 8
# Rows of each part that each process reads: neither parts nor rows need be as many.
PARTS = [[torch.arange(5)], [torch.arange(5, 6), torch.arange(6, 8)]]
SETTINGS = {"separate": True, "max_grad_norm": 0.05, "lr_heads": 3e-3, "lr_alpha": 1e-2}


def train_sac(group, parts, **settings):
    """Updates by this process's parts of every batch, the first ones of the critic alone."""
    loss = toy.make_loss(toy.make_trunk("partly frozen"), alpha_init=0.2, target_entropy=0.3)
    targets = SoftUpdate(loss, tau=0.1)
    optimizer = SharedTrunkOptimizer(loss, group=group, **{**SETTINGS, **settings})
    norms = []
    for number in range(UPDATES):
        batch = toy.make_batch(ROWS)
        for rows in parts:
            terms = loss(batch[rows].clone())
            optimizer.backward(terms, len(rows) / ROWS, update_actor=number >= 5)
        norms.append(optimizer.step())
        targets.step()
    return toy.values(loss), norms


def train_ppo(group, parts):
    """The inner loop of recipes/ppo_glam.py."""
    loss = ppo.make_loss()
    parameters = [{"params": list(loss.parameters()), "lr": 1e-3}]
    optimizer, norms = ClippedAdam(parameters, max_grad_norm=0.05, group=group), []
    for _ in range(UPDATES):
        batch = loss.prepare(ppo.make_rollout(loss, ROWS))
        for rows in parts:
            optimizer.backward(loss(batch[rows].clone()), len(rows) / ROWS)
        norms.append(optimizer.step())
    return toy.values(loss), norms


RUNS = {
    "SAC, an Adam for each loss": train_sac,
    "SAC, one Adam": partial(train_sac, separate=False),
    "PPO": train_ppo,
}


def run(name, group, parts):
    torch.manual_seed(1)
    return RUNS[name](group, parts)


@pytest.fixture(scope="module")
def of_two():
    return run_processes(
        lambda ranks: {name: run(name, ranks.group, PARTS[ranks.rank]) for name in RUNS}
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_update_as_one_with_all_rows(name, of_two):
    alone, norms = run(name, None, [torch.arange(ROWS)])
    for together, their_norms in (results[name] for results in of_two):
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
        for mine, theirs in zip(norms, their_norms, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-3), "before clipping"
    first, second = (results[name][0] for results in of_two)
    assert all(second[key].equal(value) for key, value in first.items()), "to the last bit"


def test_a_parameter_that_one_process_reaches_has_a_gradient_on_both():
    """And one that none reaches has none."""

    def reach_unevenly(ranks):
        used, seldom, never = (nn.Parameter(torch.ones(size)) for size in ((2,), (1, 1), ()))
        found = {used: torch.full((2,), ranks.rank + 1.0)}
        if ranks.rank == 1:
            found[seldom] = torch.full((1, 1), 4.0)
        GradientReducer(ranks.group).sum({"all": [used, seldom, never]}, {"all": found})
        assert found[used].tolist() == [3.0, 3.0] and found[seldom].tolist() == [[4.0]]
        assert never not in found

    run_processes(reach_unevenly)


def test_what_fails_on_one_process_fails_on_all_and_changes_nothing():
    def fail_on_one(ranks):
        torch.manual_seed(0)
        loss = toy.make_loss()
        optimizer = SharedTrunkOptimizer(loss, group=ranks.group)
        before = toy.values(loss)

        def update(out_of_memory):
            terms = loss(toy.make_batch())
            if ranks.rank == 1:
                terms["loss_actor"] = terms["loss_actor"] * torch.nan
                if out_of_memory:
                    optimizer.discard(RuntimeError("out of memory"))
            optimizer.backward(terms)
            optimizer.step()

        with pytest.raises(UpdateFailedError, match=("on another process", "memory")[ranks.rank]):
            update(out_of_memory=True)
        with pytest.raises(FloatingPointError, match=("on another", "actor is nan")[ranks.rank]):
            update(out_of_memory=False)
        assert all(value.equal(before[name]) for name, value in toy.values(loss).items())

    run_processes(fail_on_one)
