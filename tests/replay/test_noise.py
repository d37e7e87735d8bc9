"""Noise in replayed tokens, against counts by hand and TorchRL's own use of transforms."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, TransformedEnv, check_env_specs

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models.loading import load_tokenizer
from torchrl_glam.replay import TokenNoise
from torchrl_glam.text import TokenizeText


def noisy(tokens, **kwargs):
    return TokenNoise(**kwargs)(TensorDict({"observation_tokens": tokens}, [len(tokens)]))


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=1, max_size=6),
    st.floats(0, 1),
    st.integers(0, 5),
)
def test_padding_stays_and_only_tokens_of_the_batch_come(rows, rate, pad_id):
    before = torch.tensor(rows)
    after = noisy(before.clone(), rate=rate, pad_id=pad_id)["observation_tokens"]
    assert after.shape == before.shape and after.dtype == before.dtype
    assert torch.equal(after == pad_id, before == pad_id)
    assert set(after.flatten().tolist()) <= set(before.flatten().tolist())
    if rate == 0.0:
        assert torch.equal(after, before)


def test_a_token_is_replaced_as_often_as_said_by_what_the_batch_has():
    """Of 40,000 ones and 40,000 threes a quarter is drawn again, half of it as it was."""
    torch.manual_seed(0)
    tokens = torch.tensor([[1, 3, 0, 3, 1]]).expand(20_000, -1)
    after = noisy(tokens, rate=0.25)["observation_tokens"]
    changed = (after != tokens).float().mean(0).tolist()
    assert changed == pytest.approx([0.125, 0.125, 0.0, 0.125, 0.125], abs=0.01)
    assert Counter(after.flatten().tolist())[0] == 20_000


def test_what_is_stored_stays_as_it_is_and_each_draw_has_noise_of_its_own():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), batch_size=50, transform=Compose(TokenNoise(0.5))
    )
    tokens = torch.arange(1, 401).view(50, 8)
    following = TensorDict({"observation_tokens": tokens + 1}, [50])
    buffer.extend(TensorDict({"observation_tokens": tokens, "next": following}, [50]))
    one, other = buffer.sample(), buffer.sample()
    assert torch.equal(buffer.storage[:]["observation_tokens"], tokens)
    rows = one["next", "observation_tokens"] - 1  # whose texts have none
    assert 100 < (one["observation_tokens"] != rows).sum() < 300
    assert not torch.equal(one["observation_tokens"], other["observation_tokens"])


def test_the_global_generator_draws_and_without_noise_it_is_left_alone():
    tokens = torch.arange(1, 13).view(3, 4)
    torch.manual_seed(3)
    first = noisy(tokens, rate=0.5)["observation_tokens"]
    torch.manual_seed(3)
    noisy(tokens, rate=0.0)
    assert torch.equal(noisy(tokens, rate=0.5)["observation_tokens"], first)


def test_entries_can_be_nested_and_written_elsewhere():
    tokens = torch.arange(1, 9).view(2, 4)
    batch = TensorDict({"agent": {"tokens": tokens}}, [2])
    noise = TokenNoise(1.0, in_keys=[("agent", "tokens")], out_keys=["noisy"])
    assert torch.equal(noise(batch)["agent", "tokens"], tokens)
    assert not torch.equal(batch["noisy"], tokens)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(ValueError, match=r"rate \(.*\) must be in \[0, 1\]"):
        TokenNoise(rate)


def test_an_environment_with_noise_keeps_its_specs():
    tokenizer = load_tokenizer("tiny")
    noise = TokenNoise(0.5, tokenizer.pad_token_id)
    env = TransformedEnv(PlaygroundTextEnv(), Compose(TokenizeText(tokenizer), noise))
    check_env_specs(env)
    plain = TransformedEnv(PlaygroundTextEnv(seed=1), TokenizeText(tokenizer)).reset()
    env.set_seed(1)
    assert not torch.equal(env.reset()["observation_tokens"], plain["observation_tokens"])
