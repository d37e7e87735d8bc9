"""Memory before a model is loaded: against bytes counted by hand, and those of the real model."""

import pytest
import torch
from families import make_model
from flan_t5 import make_flan_t5
from peft import LoraConfig

from torchrl_glam.models import build_trie, load_language_model, load_tokenizer
from torchrl_glam.training.config import SACGLAMConfig
from torchrl_glam.training.memory_check import check_memory, pass_shape
from torchrl_glam.training.memory_estimate import (
    LiveBytes,
    MemoryEstimate,
    PassShape,
    estimate_memory,
)

CPU = torch.device("cpu")
SHAPE = PassShape(states=16, prompt_tokens=30, num_actions=4, action_tokens=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_flan_t5(tmp_path_factory.mktemp("models") / "flan"))


def test_bytes_that_are_held_at_a_time():
    with LiveBytes() as live:
        a = torch.empty(1000)  # 4,000 bytes
        b = a.view(10, 100) * 2  # and 4,000 more; a view takes none
        del a
        c = b.double()  # 4,000 and 8,000
        assert live.now == 12_000 and live.most == 12_000
        del b
        c.add_(1)
        assert live.now == 8_000 and live.most == 12_000


def test_nodes_are_those_of_a_trie():
    tokens = torch.tensor([[[5, 6, 7 + 2 * i, 8 + 2 * i] for i in range(4)]])
    trie = build_trie(tokens, torch.ones(1, 4, dtype=torch.bool), 1, 0)
    assert SHAPE.nodes == int(trie.valid.sum()) == 11
    assert PassShape(1, 9, num_actions=3, action_tokens=1).nodes == 4


# Adapters of rank 2 on q and v, 64 x 64, of 2 encoder layers, 2 decoder layers with two each; one
# hidden layer of 16 units on embeddings of 64; in float32.
ADAPTERS, CRITIC = 4 * 2 * (2 + 2 * 2) * 2 * (64 + 64), 4 * (64 * 16 + 16 + 16 + 1)


@pytest.mark.parametrize(("separate", "several"), [(True, True), (False, False)])
def test_what_trains_by_hand(folder, separate, several):
    lora = LoraConfig(r=2, target_modules=["q", "v"])
    options = {"separate": separate, "several_passes": several, "critic_hidden_sizes": (16,)}
    found = estimate_memory(folder, SHAPE, lora=lora, **options)
    adams = 2 if separate else 1
    # Targets, two moments an Adam, and gradients of each loss, of which the last goes as it comes.
    copies = 1 + 2 * adams + adams - (not several)
    # The critic itself, its target, two moments, a gradient.
    assert found.training == copies * ADAPTERS + 5 * CRITIC


@pytest.mark.parametrize(
    ("options", "rank"), [({}, None), ({"dtype": torch.bfloat16}, 2), ({"load_in_4bit": True}, 2)]
)
def test_weights_are_those_that_are_loaded(folder, options, rank):
    lora = None if rank is None else LoraConfig(r=rank, target_modules=["q", "v"])
    model, _ = load_language_model(folder, lora=lora, **options)
    parameters = list(model.parameters())
    states = [p.quant_state.as_dict(packed=True) for p in parameters if hasattr(p, "quant_state")]
    held = sum(p.nbytes for p in parameters)
    held += sum(v.nbytes for state in states for v in state.values() if torch.is_tensor(v))
    found = estimate_memory(folder, SHAPE, lora=lora, **options)
    # The description of a matrix in 4 bits, some 100 bytes of text, is not counted to the byte.
    assert found.weights == pytest.approx(held, rel=0.03 if states else 0)


def test_activations_follow_states_and_settings(folder):
    lora = LoraConfig(r=2, target_modules=["q", "v"])
    found = estimate_memory(folder, SHAPE, lora=lora).activations
    twice = PassShape(2 * SHAPE.states, 30, 4, 4)
    assert estimate_memory(folder, twice, lora=lora).activations == pytest.approx(
        2 * found, rel=0.1
    )
    recomputed = estimate_memory(folder, SHAPE, lora=lora, gradient_checkpointing=True)
    assert recomputed.activations < 0.7 * found
    narrow = estimate_memory(folder, SHAPE, lora=lora, autocast=torch.bfloat16)
    assert narrow.activations < 0.9 * found


def test_decoder_only_models(tmp_path):
    tokenizer = load_tokenizer("tiny")
    make_model("qwen2", tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, _ = load_language_model(tmp_path)
    found = estimate_memory(str(tmp_path), SHAPE)
    assert found.weights == sum(p.nbytes for p in model.parameters())
    assert found.activations > SHAPE.states * SHAPE.prompt_tokens * 32 * 4


def test_a_model_that_cannot_fit_is_refused_with_what_to_change(folder):
    config = SACGLAMConfig(model=folder, max_tokens_per_pass=4096, autocast="false")
    said = check_memory(config, CPU, most=10**9)
    assert said.startswith("needs about 0.2 GB of 1.0 GB (weights 0.0")
    with pytest.raises(
        ValueError, match="cannot fit the memory of cpu: it needs about 0.2 GB of 0.0"
    ):
        check_memory(config, CPU, most=10**7)
    with pytest.raises(
        ValueError, match=r"Set gradient_checkpointing=true, max_tokens_per_pass=2048"
    ):
        check_memory(config, CPU, most=10**7)


def test_a_model_that_cannot_be_estimated_is_no_mistake(tmp_path):
    """UMT5's position biases take no trie; whatever is wrong with settings, loading says."""
    tokenizer = load_tokenizer("tiny")
    make_model("umt5", tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = SACGLAMConfig(model=str(tmp_path), max_tokens_per_pass=4096)
    assert check_memory(config, CPU).startswith("not estimated (InexactTrunkError: ")
    with pytest.raises(FileNotFoundError, match="no folder with a model"):
        check_memory(SACGLAMConfig(model=str(tmp_path / "other")), CPU)


def test_without_a_bound_a_pass_is_the_batch_of_the_environment():
    """Three tokens of a goal ("Grasp red lion") and twelve of an observation of three objects."""
    shape = pass_shape(SACGLAMConfig(batch_size=64))
    assert shape == PassShape(states=64, prompt_tokens=3 + 12, num_actions=5, action_tokens=2)


def test_an_estimate_in_words():
    assert str(MemoryEstimate(10**9, 2 * 10**8, 5 * 10**8)) == (
        "1.8 GB (weights 1.0, training 0.2, activations 0.5, libraries 0.1)"
    )
