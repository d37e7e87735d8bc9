"""What the host waits for in a pass on a GPU: these places and no others, each as often as it says.

A wait costs little where the card has nothing to do, and stalls it where it has: so none may stand
between the language model's layers, nor in a backward pass. Nothing is made in main memory, and
nothing copied from there, once trunk and loss are on the card.
"""

import functools

import pytest
import torch
from gpu_parity import collected_on, fresh_trunk, steps, transitions
from pretend_card import PretendCard
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose, DeviceCastTransform
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, make_critic
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.replay import (
    HindsightRatioSampler,
    HindsightTransform,
    SegmentMultiStepTransform,
)

MODELS, OBJECTIVES = "torchrl_glam/models", "torchrl_glam/objectives"
# Before the language model reads anything, but for the last.
PASS = {
    # How many states differ; once more if some do not.
    f"{MODELS}/trunks/passes.py: distinct_rows": 1,
    "torchrl_glam/text/prompt.py: forward": 1,  # the longest prompt
    # The longest candidate, and what must be refused.
    f"{MODELS}/trunks/trie.py: admissible_tokens": 1,
    f"{MODELS}/trunks/trie.py: build_trie": 1,  # the largest trie
}
SCORES = {f"{MODELS}/trunks/likelihood.py: forward": 1}  # how many nodes the vocabulary head reads


@functools.cache
def loss_on_card(family):
    """A loss, its trunk and a batch of transitions, put there once."""
    with PretendCard():
        batch = transitions().to("cuda")
        trunk, critic = make_critic(fresh_trunk(family), num_actions=5, hidden_sizes=(16,))
        loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=5).to("cuda")
        loss.make_value_estimator(gamma=0.9)
        SoftUpdate(loss, tau=0.1)
        loss(batch.clone())  # what is made once is made
        return loss, batch


@pytest.fixture(params=["flan-t5", "qwen2"])
def case(request):
    """A card, and on it a batch of transitions and a loss with its trunk."""
    loss, batch = loss_on_card(request.param)
    with PretendCard() as card:
        yield card, batch, loss.trunk, loss


def nothing_from_the_host(card):
    return not card.from_host and not card.on_host


def test_a_pass_of_the_trunk(case):
    card, batch, trunk, _ = case
    with torch.no_grad():
        scores = trunk(batch.clone(), only="scores")
    assert card.waits == PASS | SCORES and nothing_from_the_host(card)
    CandidateActor()(scores)
    assert card.waits == PASS | SCORES | {f"{MODELS}/actor.py: _check_scores": 1}
    card.forget()
    with torch.no_grad():
        trunk(batch.clone(), only="embeddings")
    assert card.waits == PASS and nothing_from_the_host(card)


def test_states_that_are_alike_cost_two_more(case):
    card, batch, trunk, _ = case
    two = batch[[0, 1, 0]].clone()
    card.forget()
    trunk(two)
    more = {
        f"{MODELS}/trunks/passes.py: distinct_rows": 2,
        f"{MODELS}/trunks/trie.py: admissible_tokens": 2,
    }
    assert card.waits == PASS | SCORES | more


def test_losses_and_their_backward_pass(case):
    card, batch, _, loss = case
    terms = loss(batch)
    passes = {place: 3 * times for place, times in PASS.items()}
    scored = {place: 2 * times for place, times in SCORES.items()}  # not by the target's weights
    checks = {
        f"{MODELS}/actor.py: _check_scores": 2,  # of the state, and of the next one
        f"{OBJECTIVES}/_checks.py: check_finite": 3,  # Q, the reward, Q of the next state
        f"{OBJECTIVES}/_checks.py: check_action": 1,
        f"{OBJECTIVES}/sac.py: _compute_target": 1,  # which rows go on
    }
    assert card.waits == passes | scored | checks and nothing_from_the_host(card)
    total = terms["loss_actor"] + terms["loss_qvalue"] + terms["loss_alpha"]
    card.forget()
    torch.autograd.grad(total, [p for p in loss.parameters() if p.requires_grad])
    assert not card.waits and nothing_from_the_host(card)


def test_a_step_of_the_optimizer(case):
    """One wait for the losses and one for all groups' norms, however many groups there are."""
    card, batch, _, loss = case
    rates = dict.fromkeys(("lr_trunk_actor", "lr_trunk_critic", "lr_heads", "lr_alpha"), 0.0)
    optimizer = SharedTrunkOptimizer(loss, **rates)
    terms = loss(batch.clone())
    card.forget()
    optimizer.backward(terms)
    assert len(optimizer.step()) == 4
    assert card.waits == {
        f"{OBJECTIVES}/gathering.py: backward": 1,
        f"{OBJECTIVES}/gathering.py: step": 1,
    }
    assert nothing_from_the_host(card)


def test_replay_in_main_memory():
    """Steps come down in one copy a tensor that nothing waits for, and batches go up likewise."""
    rollouts = steps()
    with PretendCard() as card:
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(200),
            sampler=HindsightRatioSampler(0.5),
            transform=Compose(
                SegmentMultiStepTransform(3, 0.9),
                HindsightTransform(seed=0),
                DeviceCastTransform("cuda", "cpu"),
            ),
            batch_size=16,
        )
        for batch in rollouts:
            batch = collected_on("cuda", batch)
            card.forget()
            buffer.extend(batch)
            assert not card.waits
        card.forget()
        drawn = buffer.sample()
        assert not card.waits
        assert all(value.is_cuda for value in drawn.values(True, True))
