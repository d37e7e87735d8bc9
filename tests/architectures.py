"""Tiny models of many architectures, for the table of what trunks read and how."""

from pathlib import Path

import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

_FILE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
DECODERS = dict.fromkeys(_FILE["as_common"], _FILE["common"]) | _FILE["decoders"]
ENCODER_DECODERS = dict.fromkeys(_FILE["as_bart"], _FILE["bart"]) | _FILE["encoder_decoders"]
ARCHITECTURES = DECODERS | ENCODER_DECODERS
# T5's fresh weights are as large as trained ones; larger still, and rounding decides its attention.
SCALES = {name: 2.0 if "d_kv" in settings else 4.0 for name, settings in ARCHITECTURES.items()}


def make_architecture(name, tokenizer, *, scale=1.0, dtype=torch.float32, seed=0, **overrides):
    """A model with fresh weights, or with matrices ``scale`` times as large."""
    settings = {"model_type": name} | ARCHITECTURES[name]
    kind = settings.pop("model_type")
    special = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if name in ENCODER_DECODERS:
        special["decoder_start_token_id"] = tokenizer.pad_token_id
    nested = {"text_config", "encoder", "decoder"} & set(settings)
    settings = {k: special | v if k in nested else v for k, v in settings.items()}
    if kind == "fsmt":
        special |= {"src_vocab_size": len(tokenizer), "tgt_vocab_size": len(tokenizer)}
        special |= {"langs": ["en", "de"]}
    config = AutoConfig.for_model(kind, **(special | settings | overrides))
    auto = AutoModelForSeq2SeqLM if name in ENCODER_DECODERS else AutoModelForCausalLM
    torch.manual_seed(seed)
    model = auto.from_config(config, attn_implementation=None).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model.to(dtype)
