"""Memory that runs out in an update: once it goes on in halved passes, then the run ends."""

import copy

import pytest
import torch
from families import fresh_trunk, make_transitions
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, make_critic
from torchrl_glam.objectives import SACGLAMLoss, SharedTrunkOptimizer
from torchrl_glam.runs.out_of_memory import HalvingPasses


class Training:
    """An update as the recipes do it, on a device that holds so many states at a time."""

    def __init__(self, states, max_tokens):
        self.states, self.read = states, []
        self.trunk = fresh_trunk("flan-t5")
        plain = self.trunk._read
        self.trunk._read = lambda *inputs: plain(*self.fits(*inputs))
        torch.manual_seed(0)
        _, critic = make_critic(self.trunk, num_actions=5, hidden_sizes=(16,))
        self.loss = SACGLAMLoss(self.trunk, CandidateActor(), critic, num_actions=5)
        self.loss.make_value_estimator(gamma=0.9)
        SoftUpdate(self.loss, tau=0.1)
        self.optimizer = SharedTrunkOptimizer(self.loss)
        self.passes = HalvingPasses(self.trunk, self.optimizer, max_tokens)
        self.update = self.passes(self.update)

    def fits(self, prompt, *others):
        if len(prompt) > self.states:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore")
        self.read.append(len(prompt))
        return prompt, *others

    def update(self, batch):
        for part in self.passes.split(batch):
            self.optimizer.backward(self.loss(part), len(part) / len(batch))
        return self.optimizer.step()

    def weights(self):
        return copy.deepcopy(self.loss.state_dict())


def same(ours, expected):
    assert ours.keys() == expected.keys()
    return all(torch.equal(torch.as_tensor(ours[k]), torch.as_tensor(expected[k])) for k in ours)


def whole_pass(batch):
    prompts, nodes = fresh_trunk("flan-t5").count_tokens(batch)
    return len(batch) * int(prompts.max() + nodes.max())


@pytest.mark.parametrize("given", [True, False], ids=["tokens given", "one pass"])
def test_the_update_is_that_of_smaller_passes(given, caplog):
    batch = make_transitions()
    tokens = whole_pass(batch)
    training = Training(states=6, max_tokens=tokens if given else None)
    expected = Training(states=100, max_tokens=tokens // 2)
    assert training.update(batch.clone()) == expected.update(batch.clone())
    assert same(training.weights(), expected.weights())
    assert training.passes.max_tokens == tokens // 2
    said = caplog.text
    assert f"max_tokens_per_pass={tokens // 2}" in said and "Tried to allocate 2.00 GiB" in said
    caplog.clear()
    training.update(batch.clone())  # and says no more
    assert not caplog.text and max(training.read) <= 6


def test_what_a_broken_backward_pass_left_is_forgotten():
    batch, training = make_transitions(), Training(states=100, max_tokens=None)
    expected, calls = Training(states=100, max_tokens=whole_pass(batch) // 2), []

    def fails_late(update):
        def run(batch):
            if not calls:
                calls.append(True)
                part = training.passes.split(batch)[0]
                training.optimizer.backward(training.loss(part))
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return update(batch)

        return run

    update = training.passes(fails_late(Training.update.__get__(training)))
    update(batch.clone())
    expected.update(batch.clone())
    assert same(training.weights(), expected.weights())


def test_memory_that_runs_out_again_ends_the_run_and_changes_nothing():
    batch = make_transitions()
    training = Training(states=2, max_tokens=whole_pass(batch))
    before = training.weights()
    message = "again, after passes were halved once.*set max_tokens_per_pass=.*or less"
    with pytest.raises(torch.OutOfMemoryError, match=message):
        training.update(batch.clone())
    assert same(training.weights(), before)


def test_one_token_is_not_halved():
    training = Training(states=0, max_tokens=1)
    with pytest.raises(torch.OutOfMemoryError, match=r"max_tokens_per_pass: 1; CUDA out of memory"):
        training.update(make_transitions())
