"""WeightAverage against the average written out, and what must stay as it was."""

import pytest
import torch
from torch import nn

from torchrl_glam.objectives import WeightAverage

from . import toy


def trained_on(layer, values):
    """Yields after the weight has become each of the values in turn."""
    for value in values:
        layer.weight.data.fill_(value)
        yield


def by_hand(values, decay):
    """The first value as it is, then shares of (1 + n) / (10 + n) until they reach the decay."""
    mean = values[0]
    for n, value in enumerate(values[1:], 1):
        share = min(decay, (1 + n) / (10 + n))
        mean = share * mean + (1 - share) * value
    return mean


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_the_average_is_that_of_the_formula(decay):
    layer, values = nn.Linear(1, 1, bias=False), [1.0, 4.0, -2.0, 0.5, 8.0, 3.0]
    average = WeightAverage([layer], decay=decay)
    for _ in trained_on(layer, values):
        average.update()
    with average.applied():
        assert layer.weight.item() == pytest.approx(by_hand(values, decay), rel=1e-6)
    assert layer.weight.item() == 3.0
    assert bool(list(average.parameters())) == bool(decay), "without decay nothing is held"


def test_the_weights_return_after_an_error_in_the_middle():
    layer = nn.Linear(1, 1, bias=False)
    average = WeightAverage([layer], decay=0.9)
    for _ in trained_on(layer, [1.0, 3.0]):
        average.update()
    with pytest.raises(KeyboardInterrupt), average.applied():
        assert layer.weight.item() != 3.0
        raise KeyboardInterrupt
    assert layer.weight.item() == 3.0
    average.update()  # and the average is its own again
    with average.applied():
        assert layer.weight.item() == pytest.approx(by_hand([1.0, 3.0, 3.0], 0.9))


def test_of_a_loss_it_holds_what_is_trained_and_no_more_and_acts_through_its_trunk():
    loss = toy.make_loss(toy.make_trunk("tied"), toy.make_critic(), alpha_init=0.2)
    average = WeightAverage([loss.trunk_params, loss.qvalue_network_params], decay=0.5)
    trained = [*loss.trunk_parameters(), *loss.critic_parameters()]
    assert sum(p.numel() for p in average.parameters()) == sum(p.numel() for p in trained)
    before = [p.detach().clone() for p in trained]
    average.update()
    for parameter in trained:
        parameter.data.add_(1.0)
    average.update()
    with average.applied():  # (1 + 1) / (10 + 1) of what was before
        for parameter, old in zip(trained, before, strict=True):
            torch.testing.assert_close(parameter.data, old + 9 / 11)
    for parameter, old in zip(trained, before, strict=True):
        torch.testing.assert_close(parameter.data, old + 1.0)
    assert not any(name.startswith("live") for name in average.state_dict())


def test_a_saved_average_goes_on_as_if_it_had_never_stopped():
    values = [1.0, 4.0, -2.0, 0.5]
    layer, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    first, second = WeightAverage([layer], decay=0.9), WeightAverage([other], decay=0.9)
    for _ in trained_on(layer, values[:2]):
        first.update()
    second.load_state_dict(first.state_dict())
    for _ in trained_on(other, values[2:]):
        second.update()
    with second.applied():
        assert other.weight.item() == pytest.approx(by_hand(values, 0.9), rel=1e-6)


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ValueError, match=r"decay \(.*\) must be in \[0, 1\)"):
        WeightAverage([nn.Linear(1, 1)], decay=decay)
