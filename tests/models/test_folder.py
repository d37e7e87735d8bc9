"""Model folders from elsewhere: nothing in them runs, hangs or leads out of them."""

import json
import os
import pickle
import shutil
import warnings
from importlib.util import find_spec
from unittest import mock

import pytest
import torch
from families import make_model
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from torchrl_glam.models import export_agent, load_language_model, load_tokenizer
from torchrl_glam.models.folder import without_current_folder


@pytest.fixture
def folder(tmp_path):
    tokenizer = load_tokenizer("tiny")
    make_model("gpt2", tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.hostile
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"]
)
@pytest.mark.parametrize("kind", ["symbolic link", "pipe"])
def test_links_and_pipes_are_refused_before_anything_is_read(folder, tmp_path, name, kind):
    entry, target = folder / name, tmp_path / "elsewhere"
    if entry.exists():
        entry.rename(target)
    if kind == "pipe":
        os.mkfifo(entry)  # opening it would wait for a writer for ever
    else:
        entry.symlink_to(target)
    for load in (load_language_model, load_tokenizer):
        with pytest.raises(ValueError, match=f"holds '{name}', which is a {kind}"):
            load(folder)


def test_a_whole_download_loads_whoever_saved_it(folder, tmp_path):
    """As of Flan-T5: weights of other libraries, and a path of the machine that saved it.

    The folder itself may be a link.
    """
    elsewhere = "/home/else/.cache/special_tokens_map.json"
    edit(folder / "tokenizer_config.json", special_tokens_map_file=elsewhere)
    for name in ("flax_model.msgpack", "tf_model.h5", "rust_model.ot"):
        (folder / name).touch()
        os.truncate(folder / name, 2**30)
    (tmp_path / "link").symlink_to(folder)
    load_language_model(tmp_path / "link")


@pytest.fixture
def payload(folder, tmp_path, monkeypatch):
    """Code in the folder, that leaves a trace if it is run."""
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("a question on the terminal"))
    monkeypatch.setenv("PAYLOAD", str(tmp_path / "ran"))
    (folder / "own.py").write_text("import os; os.mkdir(os.environ['PAYLOAD'])")
    return tmp_path / "ran"


class _Payload:
    def __reduce__(self):
        return os.mkdir, (os.environ["PAYLOAD"],)


@pytest.mark.hostile
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside safetensors"])
def test_a_pickle_is_never_opened(folder, payload, beside):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Payload()))
    if beside:
        load_language_model(folder)
    else:
        (folder / "model.safetensors").unlink()
        with pytest.raises(ValueError, match=r"as a pickle \(pytorch_model.bin\)"):
            load_language_model(folder)
    assert not payload.exists()


@pytest.mark.hostile
@pytest.mark.parametrize("of", ["model", "tokenizer"])
def test_code_is_neither_run_nor_offered(folder, payload, of):
    if of == "model":
        auto_map = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
        edit(folder / "config.json", model_type="own", auto_map=auto_map)
        with pytest.raises(ValueError, match="brings Python code of its own"):
            load_language_model(folder)
    else:  # transformers reads its plain files instead
        auto_map = {"AutoTokenizer": ["own.T", "own.T"]}
        edit(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=auto_map)
        assert load_tokenizer(folder).tokenize(" red") == load_tokenizer("tiny").tokenize(" red")
    assert not payload.exists()


def weights_elsewhere(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "../elsewhere.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def lacking(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("transformer.h.1.mlp.c_fc.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change(name, **changes):
    return lambda folder: edit(folder / name, **changes)


def resize(name, size):
    return lambda folder: os.truncate(folder / name, size)


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (weights_elsewhere, r"names the file '../elsewhere.safetensors'"),
        (change("tokenizer_config.json", vocab_file="/v"), "tokenizer_config.json: vocab_file"),
        (lacking, r"lacks 1 tensors .*transformer.h.1.mlp.c_fc.weight"),
        (resize("model.safetensors", 4_000), "has damaged weights"),
        (change("config.json", n_embd=16), "those of another configuration"),
        (change("config.json", n_head=0), r"damaged configuration or tokenizer \(ZeroDivisionErr"),
        (change("config.json", n_layer="x"), "damaged configuration .* 'n_layer' expected int"),
        (write("tokenizer.json", "{}"), r"damaged configuration or tokenizer \(KeyError: 'added_"),
        (write("tokenizer_config.json", "[]"), r"damaged .* tokenizer \(AttributeError: 'list'"),
        (write("config.json", "{"), r"config.json' is not JSON"),
        (write("config.json", "[" * 10**5), r"config.json' is not JSON \(nested too deeply\)"),
        (
            change("config.json", n_layer=10**7),
            "of 10000000 in its config.json, expected at most 4,096",
        ),
        (change("config.json", text={"num_experts": 10**7}), "of 10000000 in its config.json"),
        (
            resize("tokenizer.json", 2**40),
            "'tokenizer.json' of 1,099,511,627,776 bytes, expected at",
        ),
    ],
)
def test_damaged_and_absurd_files_and_those_elsewhere_are_named(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message):
        load_language_model(folder)


@pytest.fixture
def adapters(folder, tmp_path):
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return export_agent(tmp_path / "adapters", *load_language_model(folder, lora=lora))


@pytest.mark.hostile
def test_adapters_that_are_not_lora_import_nothing(adapters, payload, monkeypatch):
    """XLoRA's sub-adapters may name a module of the folder that Python was started in."""
    (adapters / "megatron").mkdir()
    shutil.copy(payload.parent / "model" / "own.py", adapters / "megatron" / "evil.py")
    lora = json.loads((adapters / "adapter_config.json").read_text())
    (adapters / "sub").mkdir()
    evil = lora | {"megatron_config": {}, "megatron_core": "megatron.evil"}
    (adapters / "sub" / "adapter_config.json").write_text(json.dumps(evil))
    xlora = {"peft_type": "XLORA", "adapters": {"a": str(adapters / "sub")}, "hidden_size": 32}
    monkeypatch.chdir(adapters)
    monkeypatch.syspath_prepend("")
    for changes, name in ((xlora, "peft_type"), (evil, "megatron_core")):
        (adapters / "adapter_config.json").write_text(json.dumps(lora | changes))
        with pytest.raises(ValueError, match=rf"has {name} \(.*expected"):
            load_language_model(".")
    assert not payload.exists()


def test_nothing_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "kernels_of_mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for entry in ("", ".", str(tmp_path)):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(entry)
            with without_current_folder():
                assert find_spec("kernels_of_mine") is None
            assert find_spec("kernels_of_mine") is not None


@pytest.mark.parametrize(
    "fails", ["transformers.AutoModelForCausalLM.from_pretrained", "peft.set_peft_model_state_dict"]
)
def test_a_full_card_is_not_told_as_damaged_weights_or_adapters(fails, adapters, monkeypatch):
    full = mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(fails, full)
    with pytest.raises(torch.OutOfMemoryError, match="^CUDA out of memory$"):
        load_language_model(adapters)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_modules": "(a+)+$"}, r"target_modules \('\(a\+\)\+\$'\).*expected list"),
        ({"target_modules": ["(a+)+$"]}, "target_modules .*expected plain names of modules"),
        ({"rank_pattern": {"(a|a)*b": 2}}, "rank_pattern .*expected plain names of modules"),
        ({"layers_pattern": "(a+)+"}, "layers_pattern .*expected it to be off"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights .*others change the base model"),
        ({"r": 10**9}, "r .1000000000., expected from 1 to 65536"),
        ({"r": "8"}, "r .'8'., expected int"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices .*expected it to be off"),
        ({"base_model_name_or_path": None}, "adapters that name no base model"),
        (
            {"base_model_name_or_path": "/nowhere/at/all"},
            "'/nowhere/at/all', which is not there: write",
        ),
        ({"base_model_name_or_path": "tiny"}, "adapters of another model than T5For"),
        # the embedded model of another installation
        ({"base_model_name_or_path": "/else/assets/tiny"}, "adapters of another model than T5For"),
    ],
)
def test_adapters_have_plain_fields_and_their_own_base(adapters, changes, message):
    edit(adapters / "adapter_config.json", **changes)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_language_model(adapters)


@pytest.mark.hostile
def test_weights_of_adapters_are_whole_and_no_pickle(adapters):
    path = adapters / "adapter_model.safetensors"
    weights = load_file(path)
    weights.popitem()
    save_file(weights, path)
    with pytest.raises(ValueError, match="is in one of them alone"):
        load_language_model(adapters)
    path.rename(adapters / "adapter_model.bin")
    with pytest.raises(ValueError, match="a pickle .*which may run code and is not opened"):
        load_language_model(adapters)


@pytest.mark.hostile
def test_adapters_beside_a_whole_model_are_refused(folder, adapters):
    for path in adapters.glob("adapter*"):
        path.rename(folder / path.name)
    with pytest.raises(ValueError, match=r"a whole model .* and adapters"):
        load_language_model(folder)


def test_attention_is_chosen_by_what_the_model_has(folder, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model, _ = load_language_model(folder)
    assert model.config._attn_implementation == "sdpa"
    monkeypatch.setattr(type(model), "_supports_sdpa", False)
    with pytest.warns(UserWarning, match="GPT2LMHeadModel has no attention 'sdpa' and is read by"):
        model, _ = load_language_model(folder)
    assert model.config._attn_implementation == "eager"
