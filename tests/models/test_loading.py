"""Language models from the package, from folders, with adapters and in 4 bits; and wrong names."""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from unittest import mock

import bitsandbytes
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from families import make_model, make_states, outputs_and_gradients
from peft import LoraConfig
from torchrl.envs import TransformedEnv
from transformers import ViTConfig, ViTModel

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import (
    AgentCard,
    CandidateActor,
    DecoderOnlyTrunk,
    EncoderDecoderTrunk,
    check_gradients,
    export_agent,
    load_agent,
    load_language_model,
    load_tokenizer,
    make_trunk,
)
from torchrl_glam.text import TokenizeText


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def save(model, folder, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_embedded_model_needs_no_network_and_is_small(offline):
    model, tokenizer = load_language_model("tiny")
    assert 5e5 <= sum(p.numel() for p in model.parameters()) <= 5e6
    assert model.config.vocab_size == len(tokenizer)
    assert not model.training
    weights = files("torchrl_glam") / "assets" / "tiny" / "model.safetensors"
    assert len(weights.read_bytes()) <= 12e6


@pytest.mark.parametrize(("num_objects", "sequential"), [(3, False), (6, True)])
def test_the_embedded_model_has_a_nearly_uniform_policy(num_objects, sequential):
    model, tokenizer = load_language_model("tiny")
    env = PlaygroundTextEnv(num_envs=16, num_objects=num_objects, sequential=sequential, seed=0)
    env = TransformedEnv(env, TokenizeText(tokenizer))
    batch = env.rollout(16, break_when_any_done=False).flatten()
    with torch.no_grad():
        entropy = CandidateActor().get_dist(EncoderDecoderTrunk(model, tokenizer)(batch)).entropy()
    assert (entropy / batch["action_mask"].sum(-1).log()).mean() >= 0.8


@pytest.mark.parametrize("kind", ["flan-t5", "flan-t5 in 4 bits", "gpt2", "llama", "qwen2"])
def test_only_adapters_are_trained(kind, flan_t5, tmp_path):
    targets = {"gpt2": ["c_attn"], "llama": ["q_proj"], "qwen2": ["q_proj"]}.get(kind, ["q", "v"])
    encodes, folder = kind.startswith("flan-t5"), flan_t5
    if not encodes:
        tokenizer = load_tokenizer(folder)
        folder = save(make_model(kind, tokenizer), tmp_path, tokenizer)
    lora = LoraConfig(r=4, target_modules=targets, fan_in_fan_out=kind == "gpt2")
    model, tokenizer = load_language_model(folder, lora=lora, load_in_4bit="4" in kind)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable and all("lora_" in name for name in trainable)
    trunk = make_trunk(model, tokenizer)
    check_gradients(trunk)
    assert isinstance(trunk, EncoderDecoderTrunk if encodes else DecoderOnlyTrunk)


def test_gradients_through_4_bit_weights_are_those_of_the_weights_they_stand_for(flan_t5):
    """Also after a pass without gradient, which may repack the weights for inference."""
    lora = LoraConfig(r=4, target_modules=["q", "v"], init_lora_weights=False)
    model, tokenizer = load_language_model(
        flan_t5, lora=lora, load_in_4bit=True, compute_dtype=torch.float32
    )
    trunk, states = make_trunk(model, tokenizer), make_states(tokenizer)
    with torch.no_grad():
        trunk(states.clone())
    plain, _ = load_language_model(flan_t5, lora=lora)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            value = weights[name]
            state = getattr(value, "quant_state", None)
            parameter.copy_(value if state is None else dequantize_4bit(value.data, state))
    _, gradients = outputs_and_gradients(trunk, states)
    _, expected = outputs_and_gradients(make_trunk(plain, tokenizer), states)
    torch.testing.assert_close(gradients, expected, atol=1e-3, rtol=1e-3)


def test_without_a_network_the_answer_comes_at_once(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    # The client asks again and again, with growing pauses.
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits to ask again"))
    with pytest.raises(FileNotFoundError, match="could not be loaded.*no network"):
        load_language_model("no/such-model")


@pytest.mark.parametrize("name", ["no/such-model", "nowhere", "./not/a/flan_t5", "a" * 300])
def test_an_unknown_name_is_explained(name, offline):
    for load in (load_language_model, load_tokenizer):
        for given in (name, Path(name)):
            with pytest.raises(FileNotFoundError, match=r"could not be loaded.*'tiny'"):
                load(given)
    with pytest.raises(FileNotFoundError, match="is not there; an agent is in the folder of a run"):
        load_agent(name)


def test_what_cannot_be_loaded_is_explained(tmp_path, flan_t5):
    with pytest.raises(FileNotFoundError, match=r"without a config\.json"):
        load_language_model(tmp_path)
    with pytest.raises(ValueError, match=r"lora.target_modules .*nope.* match no module.*'q'"):
        load_language_model(flan_t5, lora=LoraConfig(target_modules=["nope"]))
    with pytest.raises(ValueError, match="needs lora"):
        load_language_model(flan_t5, load_in_4bit=True)
    for alpha in (0, -8):
        lora = LoraConfig(lora_alpha=alpha, target_modules=["q"])
        with pytest.raises(ValueError, match=rf"lora.lora_alpha \({alpha}\) must be above 0"):
            load_language_model(flan_t5, lora=lora)
    vit = ViTModel(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1))
    with pytest.raises(ValueError, match="is a vit model, which has no language-model head"):
        load_language_model(save(vit, tmp_path, load_tokenizer(flan_t5)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, torch.bfloat16), ({"compute_dtype": torch.float32}, torch.float32)],
)
def test_4_bit_weights_are_multiplied_in_the_compute_dtype(options, expected, flan_t5, monkeypatch):
    model, tokenizer = load_language_model(
        flan_t5, lora=LoraConfig(r=4, target_modules=["q", "v"]), load_in_4bit=True, **options
    )
    quantised = [m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
    states_of = {(m.weight.quant_state.quant_type, m.weight.quant_state.nested) for m in quantised}
    assert states_of == {("nf4", True)}
    trunk = EncoderDecoderTrunk(model, tokenizer)  # which reads the model too, to check itself
    watched = mock.Mock(wraps=bitsandbytes.matmul_4bit)
    monkeypatch.setattr(bitsandbytes, "matmul_4bit", watched)
    trunk(make_states(tokenizer))
    read = [call.args[0].dtype for call in watched.call_args_list]
    assert len(read) == len(quantised) and set(read) == {expected}


def test_a_platform_without_4_bit_weights_is_named(flan_t5, monkeypatch):
    fails = mock.Mock(side_effect=NotImplementedError("no kernel for this backend"))
    lora = LoraConfig(r=4, target_modules=["q"])
    with monkeypatch.context() as patch:
        patch.setattr("bitsandbytes.functional.quantize_4bit", fails)
        with pytest.raises(ValueError, match=r"load_in_4bit .* device 'cpu' \(no kernel"):
            load_language_model(flan_t5, lora=lora, load_in_4bit=True)
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    with pytest.raises(ValueError, match=r"needs bitsandbytes: pip install 'torchrl_glam\[quant"):
        load_language_model(flan_t5, lora=lora, load_in_4bit=True)


def test_a_tokenizer_without_padding_pads_with_its_end_token(tmp_path, flan_t5):
    tokenizer = load_tokenizer(flan_t5)
    model = make_model("gpt2", tokenizer)
    padded = make_trunk(model, tokenizer)(make_states(tokenizer))
    tokenizer.pad_token = None
    model, tokenizer = load_language_model(save(model, tmp_path, tokenizer))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id is not None
    scores = make_trunk(model, tokenizer)(make_states(tokenizer))
    torch.testing.assert_close(scores["log_likelihood"], padded["log_likelihood"])
    tokenizer.pad_token = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="neither a padding nor an end-of-sequence token"):
        load_language_model(save(model, tmp_path, tokenizer))


@pytest.mark.parametrize("family", ["t5", "gpt2", "qwen2"])
def test_a_folder_without_a_tokenizer_is_named(family, tmp_path):
    make_model(family, load_tokenizer("tiny")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no tokenizer, or one that knows no word: save the"):
        load_language_model(tmp_path)


def test_adapters_alone_come_with_their_base_and_its_tokenizer_and_are_trained(tmp_path):
    """They go where a pattern of modules put them."""
    lora = LoraConfig(target_modules=r".*EncDecAttention\.(q|v)")
    model, tokenizer = load_language_model("tiny", lora=lora)
    model.save_pretrained(tmp_path)
    again, its_tokenizer = load_language_model(tmp_path)
    assert set(again.targeted_module_names) == set(model.targeted_module_names) != set()
    assert len(its_tokenizer) == len(tokenizer)
    trained = {name for name, value in again.named_parameters() if value.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    with pytest.raises(ValueError, match=r"lora cannot be given for model .* adapters already"):
        load_language_model(tmp_path, lora=lora)
    lora = LoraConfig(target_modules=["q"], trainable_token_indices=[3])
    with pytest.raises(ValueError, match=r"^lora has trainable_token_indices \(\[3\]\), ex"):
        load_language_model("tiny", lora=lora)


def test_adapters_beside_a_model_on_the_hub_are_not_loaded(tmp_path):
    """Not even if they are pickled; a folder of both is refused."""
    repository = tmp_path / "hub" / "models--me--both"
    snapshot = repository / "snapshots" / ("a" * 40)
    for lora in (None, LoraConfig()):
        model, tokenizer = load_language_model("tiny", lora=lora)
        model.save_pretrained(snapshot)
    tokenizer.save_pretrained(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    program = "from torchrl_glam.models import load_language_model as load; print(*load('me/both'))"
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    printed = subprocess.check_output([sys.executable, "-c", program], env=env, text=True)
    assert "T5ForConditionalGeneration" in printed and "lora" not in printed


def test_a_folder_of_ones_own_may_have_the_name_of_an_embedded_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, tokenizer = load_language_model("tiny")
    model.get_input_embeddings().weight.data.zero_()
    export_agent("./tiny", model, tokenizer, card=AgentCard(num_critics=0, pretraining="mine"))
    for place in ("./tiny", Path("tiny")):
        assert load_agent(place).card.pretraining == "mine"
        assert not load_language_model(place)[0].get_input_embeddings().weight.any()
    assert load_agent("tiny").card.pretraining != "mine"
