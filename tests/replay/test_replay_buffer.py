"""Hindsight, n-step and sampler together in a replay buffer that is saved and resumed."""

import pytest
import torch
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose

from torchrl_glam.replay import HindsightRatioSampler, HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.runs.checkpoints.manager import CheckpointManager

from . import toy


def make_buffer(capacity=100, storage=LazyTensorStorage, batch_size=16, seed=0, **kwargs):
    return TensorDictReplayBuffer(
        storage=storage(capacity),
        sampler=HindsightRatioSampler(ratio=0.5),
        transform=Compose(SegmentMultiStepTransform(3, 0.9), HindsightTransform()),
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(seed),
        **kwargs,
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
    ("way", "storage"),
    [
        (through_state_dict, LazyTensorStorage),
        (through_dumps, LazyTensorStorage),
        (through_dumps, LazyMemmapStorage),
        (through_checkpoint, LazyTensorStorage),
        (through_checkpoint, LazyMemmapStorage),
    ],
)
def test_resumed_draws_are_those_of_an_unbroken_run(tmp_path, way, storage, stop):
    stream = list(toy.batches(make_lines(), [1, 3, 2] * 7))
    unbroken = drive(make_buffer(capacity=60), stream, [])
    buffer = make_buffer(capacity=60, storage=storage)
    draws = drive(buffer, stream[:stop], [])
    if way is through_dumps and not len(buffer):
        pytest.raises(RuntimeError, way, buffer, make_buffer(), tmp_path)  # TorchRL's limit
        return
    fresh = make_buffer(capacity=60, storage=storage, seed=1)
    way(buffer, fresh, tmp_path)
    drive(fresh, stream[stop:], draws)
    assert len(draws) == len(unbroken)
    for one, other in zip(draws, unbroken, strict=True):
        assert (one == other).all()
