"""Hindsight, n-step and sampler together in a replay buffer that is saved and resumed."""

from functools import partial

import pytest
import torch
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import (
    GoalBalancedSampler,
    GoalKindSampler,
    HindsightRatioSampler,
    HindsightTransform,
    SegmentMultiStepTransform,
)
from torchrl_glam.runs.checkpoints.manager import CheckpointManager

from . import toy

SAMPLERS = {
    "ratio": HindsightRatioSampler,
    "kinds": partial(GoalKindSampler, [1] * 4),
    "goals": partial(GoalBalancedSampler, [1] * 4),
}


def make_buffer(sampler, storage=LazyTensorStorage, seed=0):
    return TensorDictReplayBuffer(
        storage=storage(60),
        sampler=SAMPLERS[sampler](ratio=0.5),
        transform=Compose(SegmentMultiStepTransform(3, 0.9), HindsightTransform()),
        batch_size=16,
        generator=torch.Generator().manual_seed(seed),
    )


def make_lines(num_envs=3, episodes=8):
    """Streams of 6-step episodes; the environments' episodes end at different times."""
    lines = []
    for env in range(num_envs):
        lengths = [2 + env] + [6] * episodes
        named = [[(t % 7 + 1, t % 4)] if t % 3 == env else [] for t in range(sum(lengths))]
        outcomes = ["timeout", "success", "failure"] * len(lengths)
        lines.append(toy.make_stream(lengths, outcomes[: len(lengths)], named, 1000 * env))
    shortest = min(map(len, lines))
    return [line[:shortest] for line in lines]


def drive(buffer, batches, draws):
    """Stores batches, and draws after each one once there is something to draw from."""
    for batch in batches:
        buffer.extend(batch)
        if len(buffer):
            draws.append(buffer.sample().clone())
    return draws


def through_state_dict(buffer, fresh, path):
    torch.save(buffer.state_dict(), path / "buffer.pt")
    fresh.load_state_dict(torch.load(path / "buffer.pt", weights_only=True))


def through_dumps(buffer, fresh, path):
    buffer.dumps(path / "buffer")
    fresh.loads(path / "buffer")


def through_checkpoint(buffer, fresh, path):
    """As runs save it; what the other buffer held is dropped."""
    drive(fresh, toy.batches(make_lines(), [9]), [])
    manager = CheckpointManager(path)
    manager.save(1, {"buffer": buffer}, {})
    manager.load({"buffer": fresh}, {})
    assert len(fresh) == len(buffer)


@pytest.mark.parametrize("stop", [1, 2, 9, 20])
@pytest.mark.parametrize(
    ("way", "storage", "sampler"),
    [
        *((through_state_dict, LazyTensorStorage, sampler) for sampler in SAMPLERS),
        (through_dumps, LazyTensorStorage, "goals"),
        (through_dumps, LazyMemmapStorage, "ratio"),
        (through_checkpoint, LazyTensorStorage, "ratio"),
        (through_checkpoint, LazyMemmapStorage, "goals"),
    ],
)
def test_resumed_draws_are_those_of_an_unbroken_run(tmp_path, way, storage, sampler, stop):
    stream = list(toy.batches(make_lines(), [1, 3, 2] * 7))
    unbroken = drive(make_buffer(sampler), stream, [])
    buffer, fresh = make_buffer(sampler, storage), make_buffer(sampler, storage, seed=1)
    draws = drive(buffer, stream[:stop], [])
    if way is through_dumps and not len(buffer):
        pytest.raises(RuntimeError, way, buffer, fresh, tmp_path)  # TorchRL's limit
        return
    way(buffer, fresh, tmp_path)
    drive(fresh, stream[stop:], draws)
    assert len(draws) == len(unbroken)
    for one, other in zip(draws, unbroken, strict=True):
        assert (one == other).all()
