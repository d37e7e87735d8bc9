"""Exported agents, read back by plain transformers, peft and safetensors."""

import copy
import json

import pytest
import torch
from families import make_model
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from tensordict import TensorDict
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BitsAndBytesConfig,
)

from torchrl_glam.models import AgentCard, CandidateCritic, export_agent, load_language_model
from torchrl_glam.models.export import check_no_export

TARGETS = {"flan-t5": ["q", "v", "wi_0"], "qwen2": ["q_proj", "v_proj"], "gpt2": ["c_attn"]}
NF4 = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.float32,
)


@pytest.fixture(scope="module")
def folders(flan_t5, tmp_path_factory):
    root = tmp_path_factory.mktemp("bases")
    found, tokenizer = {"flan-t5": flan_t5}, AutoTokenizer.from_pretrained(flan_t5)
    wide = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 4}
    for family, sizes in {"qwen2": wide, "gpt2": {}}.items():
        make_model(family, tokenizer, **sizes).save_pretrained(root / family)
        tokenizer.save_pretrained(root / family)
        found[family] = root / family
    return found


def load(folder, family, in_4bit=False, trained=True):
    lora = LoraConfig(r=2, target_modules=TARGETS[family], init_lora_weights=False)
    torch.manual_seed(3)
    model, tokenizer = load_language_model(
        folder, lora=lora if trained else None, load_in_4bit=in_4bit, compute_dtype=torch.float32
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.mul_(0.1)
    return model, tokenizer


def kind_of(family):
    return AutoModelForSeq2SeqLM if family == "flan-t5" else AutoModelForCausalLM


@torch.no_grad()
def logits(model, tokenizer):
    inputs = {"input_ids": tokenizer("Goal: Grasp red lion", return_tensors="pt").input_ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([[0, 5, 6]])
    return model.eval()(**inputs).logits


def assert_equal_logits(read, expected):
    """To 1e-4 of the largest: random weights make logits of some tens."""
    torch.testing.assert_close(read, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("family", "in_4bit"),
    [("flan-t5", False), ("flan-t5", True), ("qwen2", False), ("qwen2", True), ("gpt2", False)],
)
def test_a_merged_model_is_a_plain_one(family, in_4bit, folders, tmp_path):
    """The layers of GPT-2 hold their weights the other way round."""
    model, tokenizer = load(folders[family], family, in_4bit)
    expected = logits(model, tokenizer)
    before = {k: v.clone() for k, v in model.named_parameters() if "lora" in k}
    drawn = torch.get_rng_state()
    export_agent(tmp_path, model, tokenizer, kind="merged")
    assert torch.equal(torch.get_rng_state(), drawn)
    plain = kind_of(family).from_pretrained(tmp_path)
    assert not hasattr(plain.config, "quantization_config")
    assert plain.dtype == torch.float32
    read = logits(plain, AutoTokenizer.from_pretrained(tmp_path))
    assert_equal_logits(read, expected)
    without = logits(load(folders[family], family, trained=False)[0], tokenizer)
    assert (read - without).abs().max() > 1e-2, "the adapters make a difference"
    # The agent itself is as it was.
    torch.testing.assert_close(logits(model, tokenizer), expected)
    for name, value in before.items():
        torch.testing.assert_close(model.get_parameter(name), value)


@pytest.mark.parametrize("in_4bit", [False, True], ids=["float32", "4-bit"])
@pytest.mark.parametrize("family", ["flan-t5", "qwen2"])
def test_an_adapter_goes_on_its_base_model(family, in_4bit, folders, tmp_path, monkeypatch):
    # Else bitsandbytes rounds to bfloat16 on some CPUs where no gradient is needed.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    model, tokenizer = load(folders[family], family, in_4bit)
    export_agent(tmp_path, model, tokenizer)
    assert not (tmp_path / "model.safetensors").exists()
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(folders[family])
    options = {"quantization_config": NF4, "device_map": "cpu"} if in_4bit else {}
    base = kind_of(family).from_pretrained(folders[family], **options)
    read = PeftModel.from_pretrained(base, tmp_path)
    assert_equal_logits(logits(read, tokenizer), logits(model, tokenizer))


def test_kinds_that_do_not_fit_are_refused(folders, tmp_path):
    check_no_export(folders["qwen2"], models=False)  # a language model alone is no agent
    with pytest.raises(FileExistsError, match="config.json"):
        check_no_export(folders["qwen2"])
    model, tokenizer = load(folders["qwen2"], "qwen2", trained=False)
    for kind, why in (("adapter", "needs a model with adapters"), ("both", "must be one of")):
        with pytest.raises(ValueError, match=rf"kind \('{kind}'\) {why}"):
            export_agent(tmp_path / "other", model, tokenizer, kind=kind)
    with pytest.raises(ValueError, match=r"card.num_critics \(1\) must be 0, as many as critics"):
        export_agent(tmp_path / "other", model, tokenizer, card=AgentCard())
    assert not (tmp_path / "other").exists()


def test_heads_are_read_by_safetensors_alone(folders, tmp_path):
    critics = [CandidateCritic(6, (8, 7)) for _ in range(2)]
    export_agent(tmp_path, *load(folders["gpt2"], "gpt2"), TensorDict.from_modules(*critics))
    expected = {
        f"critic.{number}.{name}": value
        for number, critic in enumerate(critics)
        for name, value in critic.state_dict().items()
    }
    heads = load_file(tmp_path / "heads.safetensors")
    torch.testing.assert_close(heads, expected, atol=0, rtol=0)


@pytest.mark.parametrize("kinds", [("merged", "adapter"), ("adapter", "merged")])
def test_another_agent_is_not_overwritten_nor_mixed(kinds, folders, tmp_path):
    """A run that was exported, resumed, and exported as the other kind; a user's file stays."""
    model, tokenizer = load(folders["gpt2"], "gpt2")
    talking, out, alone = copy.deepcopy(tokenizer), tmp_path / "out", tmp_path / "alone"
    talking.chat_template = "{{ messages[0].content }}"
    export_agent(out, model, talking, kind=kinds[0], card=AgentCard(num_critics=0))
    (out / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(FileExistsError, match=r"holds a model or an agent .*overwrite=True"):
        export_agent(out, model, tokenizer, kind=kinds[1])
    with pytest.raises(FileExistsError, match=r"\((adapter_config|agent).json\)"):
        check_no_export(out, models=False)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    export_agent(out, model, tokenizer, kind=kinds[1], overwrite=True)
    export_agent(alone, model, tokenizer, kind=kinds[1])
    names = [{path.name for path in folder.iterdir()} for folder in (out, alone)]
    assert names[0] == names[1] | {"notes.txt"}
    assert AutoTokenizer.from_pretrained(out).chat_template is None


@pytest.mark.hostile
def test_an_export_writes_through_no_link(folders, tmp_path):
    (tmp_path / "mine.json").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokenizer.json").symlink_to(tmp_path / "mine.json")
    with pytest.raises(ValueError, match=r"tokenizer.json' is a symbolic link"):
        export_agent(tmp_path / "out", *load(folders["gpt2"], "gpt2"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tokenizer.json"]
    assert (tmp_path / "mine.json").read_text() == "mine"


@pytest.mark.parametrize("how", ["target_modules", "modules_to_save"])
@pytest.mark.parametrize(("family", "head"), [("gpt2", "lm_head"), ("flan-t5", "shared")])
def test_adapters_of_tied_weights_are_not_merged(family, head, how, folders, tmp_path):
    layers = {"target_modules": TARGETS[family]}
    layers[how] = [*layers.get(how, ()), head]
    lora = LoraConfig(r=2, init_lora_weights=False, **layers)
    model, tokenizer = load_language_model(folders[family], lora=lora)
    with pytest.raises(ValueError, match="cannot be merged into one of them: use 'adapter'"):
        export_agent(tmp_path / "merged", model, tokenizer, kind="merged")
    assert not (tmp_path / "merged").exists()
    export_agent(tmp_path / "adapter", model, tokenizer, kind="adapter")
