"""Progress that is predicted from embeddings."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from torchrl_glam.goals import LearnedProgressGoals, learned

TEXTS = [f"Grow {thing}" for thing in ("a cow", "a lion", "a rose", "a tree")]
EMBEDDINGS = torch.randn((4, 3), generator=torch.Generator().manual_seed(0)) * 5 + 2


def predict(head, embeddings=EMBEDDINGS, read=EMBEDDINGS):
    """What a head says of goals, without torch, standardised by what was read; hidden units."""
    w1, b1, w2, b2 = (p.detach().double().numpy() for p in head.parameters())
    rows, read = embeddings.double().numpy(), read.double().numpy()
    hidden = np.tanh((rows - read.mean(0)) / read.std(0) @ w1.T + b1)
    return 1 / (1 + np.exp(-(hidden @ w2.T + b2)[:, 0])), hidden


@pytest.mark.parametrize("reached", [True, False])
def test_a_step_is_one_on_binary_cross_entropy(reached):
    """Adam's first step moves each weight by the learning rate, against its gradient's sign."""
    settings = {"lr": 0.01, "every": 1, "steps": 1, "lag": 1, "dropout": 0.0}
    sampler = LearnedProgressGoals(TEXTS, EMBEDDINGS, **settings)
    before, (known, hidden) = sampler.head[2].weight.detach().clone(), predict(sampler.head)
    sampler.update([2], [reached])
    moved = (sampler.head[2].weight.detach() - before)[0].numpy()
    gradient = (known[2] - reached) * hidden[2]  # prediction less success
    assert moved == pytest.approx(-0.01 * np.sign(gradient), rel=0.05)


def test_the_head_learns_and_predicts_now_and_then():
    """After every third update: four steps of a batch, then all goals as before and as now."""
    settings = {"every": 3, "steps": 4, "lag": 3, "batch_size": 5}
    sampler, read = LearnedProgressGoals(TEXTS, EMBEDDINGS, **settings), []
    sampler.head.register_forward_pre_hook(lambda _, given: read.append(len(given[0])))
    for update in range(1, 8):
        sampler.update([0], [True])
        assert read == [5, 5, 5, 5, 4, 4] * (update // 3)


def test_the_newest_episodes_of_each_goal_are_learned_from(monkeypatch):
    """Of a goal at most two, of all at most five: each drawn as often as another."""
    told, plain = [], learned.binary_cross_entropy_with_logits
    keep = lambda *given: told.append(given) or plain(*given)  # noqa: E731
    monkeypatch.setattr(learned, "binary_cross_entropy_with_logits", keep)
    settings = {"window": 5, "per_goal": 2, "batch_size": 4_000, "every": 1, "steps": 1, "lag": 1}
    sampler = LearnedProgressGoals(TEXTS, EMBEDDINGS, **settings)
    sampler.update([3, 0, 0], [True, True, True])
    assert told[0][1].mean() == 1
    sampler.update([1, 0, 2, 2, 1, 0, 2], [False, False, False, True, False, False, True])
    assert sampler._episodes.tolist() == [[0, 0], [2, 1], [1, 0], [0, 0], [2, 1]]
    assert told[1][1].mean().item() == pytest.approx(0.4, abs=0.015)


def test_a_step_leaves_out_a_share_of_the_embeddings():
    """What it keeps of the standardised numbers is larger, so that their mean stays."""
    told, settings = [], {"every": 1, "steps": 1, "lag": 1, "batch_size": 1000, "dropout": 0.3}
    sampler = LearnedProgressGoals(TEXTS, EMBEDDINGS, **settings)
    sampler.head.register_forward_pre_hook(lambda _, given: told.append(given[0]))
    sampler.update([2], [True])
    row = (EMBEDDINGS[2] - EMBEDDINGS.mean(0)) / EMBEDDINGS.std(0, correction=0)
    kept = told[0] != 0
    torch.testing.assert_close(told[0], row / 0.7 * kept)
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.015)
    torch.testing.assert_close(told[-1][2], row)  # to predict, everything


def test_progress_is_the_change_of_predictions():
    """From four updates before, or from the start; below the threshold it is none."""
    settings = {"every": 2, "lag": 4, "lr": 0.001, "batch_size": 32, "steps": 4, "threshold": 0.01}
    sampler = LearnedProgressGoals(TEXTS, EMBEDDINGS, **settings)
    told, seen = [predict(sampler.head)[0]], set()
    for update in range(1, 19):
        sampler.update([0, 1, 2], [update % 5 < 3, False, True])
        told.append(predict(sampler.head)[0])
        newest = update - update % 2
        change = abs(told[newest] - told[max(newest - 4, 0)])
        seen |= {*(change >= 0.01)}
        expected = np.where(change >= 0.01, change, 0.0)
        assert sampler.progress.tolist() == pytest.approx(expected, abs=1e-5)
    assert seen == {True, False}
    assert sampler.predict(torch.tensor([3, 1])).tolist() == pytest.approx(told[-1][[3, 1]])


def test_of_a_large_table_some_goals_have_progress_and_these_change():
    """By the weights of two updates before, on what is read now."""
    table, asked = torch.randn((60, 3), generator=torch.Generator().manual_seed(1)), []
    embed = lambda ids: asked.append(ids) or table[ids]  # noqa: E731
    settings = {"every": 1, "lag": 2, "steps": 2, "threshold": 0.0}
    texts = [f"goal {i}" for i in range(60)]
    sampler = LearnedProgressGoals(texts, embed, pool=16, window=4, **settings)
    heads, met = [deepcopy(sampler.head)], set()
    for update in range(1, 30):
        sampler.update([update % 60], [update % 3 == 0])
        heads = [*heads, deepcopy(sampler.head)][-3:]
        before, now = (predict(head, table, table[asked[-1]])[0] for head in (heads[0], heads[-1]))
        (some,) = sampler.progress.nonzero(as_tuple=True)
        assert sampler.progress[some].tolist() == pytest.approx(abs(now - before)[some], abs=1e-5)
        assert len(asked[-1]) == len(asked[-1].unique()) <= 16 + 4
        assert 10 <= len(some) <= 16  # some are drawn twice
        met |= {*some.tolist()}
    assert len(met) == 60


def test_goals_share_evidence_with_those_that_are_like_them():
    """Two families of goals: one is learned on a half of its goals, the other never succeeds."""
    noise = 0.1 * torch.randn((200, 8), generator=torch.Generator().manual_seed(1))
    family = torch.arange(200) % 2
    settings = {"lr": 3e-3, "every": 8, "steps": 8, "lag": 16, "exploration": (0.0, 0.0)}
    texts = [f"goal {number}" for number in range(200)]
    sampler = LearnedProgressGoals(texts, noise + family.unsqueeze(1), **settings)
    for round_ in range(80):  # neither is reached at first
        sampler.update(torch.arange(100), family[:100] * (round_ >= 64))
    unseen = sampler.progress[100:]
    assert unseen[1::2].min() > 5 * unseen[0::2].max()
    drawn = sampler.sample(1000)
    assert (drawn % 2 == 1).float().mean() > 0.9 and (drawn >= 100).float().mean() > 0.4


def test_the_embeddings_and_the_global_generators_are_left_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeds the GPU"))
    table, state = EMBEDDINGS.clone().requires_grad_(), torch.get_rng_state()
    for embeddings in (table, lambda ids: table[ids] * 1.0):
        sampler = LearnedProgressGoals(TEXTS, embeddings, every=1, lag=1)
        sampler.update([0, 1], [True, False])
    assert table.grad is None and torch.equal(torch.get_rng_state(), state)
