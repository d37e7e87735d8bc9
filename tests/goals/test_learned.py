"""Progress that is predicted from embeddings."""

import numpy as np
import pytest
import torch

from torchrl_glam.goals import LearnedProgressGoals

TEXTS = [f"Grow {thing}" for thing in ("a cow", "a lion", "a rose", "a tree")]
EMBEDDINGS = torch.randn((4, 3), generator=torch.Generator().manual_seed(0))


def predict(sampler):
    """What the head says of every goal, without torch; also the hidden units."""
    w1, b1, w2, b2 = (p.detach().double().numpy() for p in sampler.head.parameters())
    hidden = np.tanh(EMBEDDINGS.double().numpy() @ w1.T + b1)
    return 1 / (1 + np.exp(-(hidden @ w2[0] + b2))), hidden


def test_an_update_is_a_step_on_binary_cross_entropy():
    """Adam's first step moves each weight by the learning rate, against its gradient's sign."""
    asked, success = [], np.array([1.0, 0.0, 0.0, 1.0])
    embed = lambda ids: asked.append(ids) or EMBEDDINGS[ids]  # noqa: E731
    sampler = LearnedProgressGoals(TEXTS, embed, batch_size=64, lr=0.01)
    before, (known, hidden) = sampler.head[2].weight.detach().clone(), predict(sampler)
    asked.clear()
    sampler.update(torch.arange(4), torch.tensor(success))
    drawn = asked[0].numpy()  # the gradient of a logit is the prediction less the success
    gradient = ((known - success)[drawn, None] * hidden[drawn]).mean(0)
    moved = (sampler.head[2].weight.detach() - before)[0].tolist()
    assert moved == pytest.approx(-0.01 * np.sign(gradient), rel=0.05)


def test_newer_episodes_are_drawn_more_often():
    """Of four episodes that are kept the last is drawn four times as often as the first."""
    asked = []
    embed = lambda ids: asked.append(ids) or EMBEDDINGS[ids]  # noqa: E731
    sampler = LearnedProgressGoals(TEXTS, embed, window=4, batch_size=20_000)
    asked.clear()
    sampler.update([0, 0, 0, 3, 2, 1], [True, False] * 3)
    share = asked[0].bincount(minlength=4) / 20_000
    assert share.tolist() == pytest.approx([0.1, 0.4, 0.3, 0.2], abs=0.015)


def test_progress_is_the_change_of_predictions():
    """From four updates before, or from the start; a change below 0.01 is none."""
    settings = {"every": 2, "lag": 4, "lr": 0.003, "batch_size": 32}
    sampler = LearnedProgressGoals(TEXTS, EMBEDDINGS, **settings)
    told, seen = [predict(sampler)[0]], set()
    for update in range(1, 13):
        sampler.update([0, 1, 2], [update % 5 < 3, False, True])
        told.append(predict(sampler)[0])
        newest = update - update % 2
        change = abs(told[newest] - told[max(newest - 4, 0)])
        seen |= {value >= 0.01 for value in change if value}
        expected = np.where(change >= 0.01, change, 0.0)
        assert sampler.progress.tolist() == pytest.approx(expected, abs=1e-5)
        assert sampler.competence.tolist() == pytest.approx(told[newest], abs=1e-5)
    assert seen == {True, False}


def test_goals_share_evidence_with_those_that_are_like_them():
    """Two families of goals: one is learned on a half of its goals, the other never succeeds."""
    noise = 0.1 * torch.randn((200, 8), generator=torch.Generator().manual_seed(1))
    family = torch.arange(200) % 2
    settings = {"lr": 3e-3, "every": 8, "lag": 16, "exploration": (0.0, 0.0)}
    texts = [f"goal {number}" for number in range(200)]
    sampler = LearnedProgressGoals(texts, noise + family.unsqueeze(1), **settings)
    for round_ in range(80):  # neither is reached at first
        sampler.update(torch.arange(100), family[:100] * (round_ >= 64))
    unseen = sampler.progress[100:]
    assert unseen[1::2].min() > 5 * unseen[0::2].max()
    drawn = sampler.sample(1000)
    assert (drawn % 2 == 1).float().mean() > 0.9 and (drawn >= 100).float().mean() > 0.4


def test_the_embeddings_and_the_global_generator_are_left_alone():
    table, state = EMBEDDINGS.clone().requires_grad_(), torch.get_rng_state()
    for embeddings in (table, lambda ids: table[ids] * 1.0):
        LearnedProgressGoals(TEXTS, embeddings).update([0, 1], [True, False])
    assert table.grad is None and torch.equal(torch.get_rng_state(), state)
