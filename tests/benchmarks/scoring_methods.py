"""The methods that bench_scoring.py compares, and the models and states it compares them on."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from torchrl_glam.models import (
    CandidateTrunk,
    RepeatedDecoderOnlyTrunk,
    RepeatedTrunk,
    build_trie,
    load_language_model,
    make_trunk,
)

sys.path.insert(0, str(Path(__file__).parents[1]))

from flan_t5 import make_tokenizer  # noqa: E402

SPECIAL = {"pad_token_id": 0, "eos_token_id": 1}
T5 = SPECIAL | {"decoder_start_token_id": 0, "vocab_size": 32128, "d_kv": 64}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
SMALL = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
BASE = {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
LARGE = {"d_model": 1024, "d_ff": 2816, "num_layers": 24, "num_heads": 16}
QWEN = SPECIAL | {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
QWEN_HALF = QWEN | {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}
MODELS = {
    "tiny": lambda: T5ForConditionalGeneration(
        T5Config(**(T5 | SMALL | {"d_model": 64, "num_layers": 1}))
    ),
    "t5-small": lambda: T5ForConditionalGeneration(T5Config(**(T5 | SMALL))),
    "flan-t5-base": lambda: T5ForConditionalGeneration(T5Config(**(T5 | BASE | GATED))),
    "flan-t5-large": lambda: T5ForConditionalGeneration(T5Config(**(T5 | LARGE | GATED))),
    "qwen2-100m": lambda: Qwen2ForCausalLM(Qwen2Config(**QWEN)),
    "qwen2-500m": lambda: Qwen2ForCausalLM(Qwen2Config(**QWEN_HALF)),
}
METHODS = ("naive", "repeat", "trie", "trie + embeddings", "floor")


class Case(NamedTuple):
    """A language model and a batch of B states with A candidates each."""

    trunk: CandidateTrunk
    repeated: CandidateTrunk
    states: TensorDict
    prompt: Tensor  # [B, T]
    prompt_mask: Tensor  # [B, T]

    def describe(self) -> str:
        base, length = self.trunk.base_model, self.prompt_mask.sum(-1)
        actions, mask = self.states["action_tokens"], self.states["action_mask"]
        trie, full = (
            int(build_trie(actions, mask, 0, 0, leaves=leaves).valid.sum())
            for leaves in (False, True)
        )
        return (
            f"{sum(p.numel() for p in base.parameters()) / 1e6:.0f} M parameters; prompts of "
            f"{int(length.min())} to {int(length.max())} tokens, {mask.shape[1]} candidates of "
            f"{int((actions != 0).sum() / mask.sum())} tokens on average; positions to read them: "
            f"{trie} trie, {full} trie + embeddings"
        )


def make_states(number: int, objects: int) -> TensorDict:
    """Tokens shaped as Flan-T5's tokenizer cuts Playground-Text with six objects.

    Prompts of 86 to 94 tokens; a candidate "Go to" + colour + noun of one or two pieces for every
    object, and two others of three tokens. Which tokens they are makes no difference.
    """
    draw = torch.Generator().manual_seed(0)

    def random(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=draw)

    observation = random(1000, 9000, number, 75)
    observation[torch.arange(75) >= random(67, 76, number, 1)] = 0
    others = random(900, 1000, number, 2, 5)
    others[..., 3:] = 0
    go = torch.tensor([10, 11]).expand(number, objects, 2)
    # Objects of a state differ.
    noun = torch.rand(number, 800, generator=draw).argsort(-1)[:, :objects, None] + 100
    noun = torch.cat([noun, random(100, 900, number, objects, 1)], -1)
    noun[..., 1] *= random(0, 2, number, objects)
    return TensorDict(
        {
            "goal_tokens": random(1000, 9000, number, 10),
            "observation_tokens": observation,
            "action_tokens": torch.cat(
                [torch.cat([go, random(20, 28, number, objects, 1), noun], -1), others], 1
            ),
            "action_mask": torch.ones(number, objects + 2, dtype=torch.bool),
        },
        batch_size=[number],
    )


def adapters(model: nn.Module) -> LoraConfig:
    """Those of rank 16 on queries and values."""
    targets = ["q", "v"] if model.config.is_encoder_decoder else ["q_proj", "v_proj"]
    return LoraConfig(r=16, lora_alpha=32, target_modules=targets)


def in_four_bits(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, device: str, lora: LoraConfig
) -> nn.Module:
    """The same model with adapters, and other weights in 4 bits, as a recipe would load it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options = {"lora": lora, "load_in_4bit": True, "dtype": model.dtype, "device": device}
        return load_language_model(folder, **options)[0]


def products(arguments: argparse.Namespace) -> torch.dtype | None:
    """Type for autocast, as recipes set it: weights in 4 bits leave float32 between them."""
    return torch.bfloat16 if arguments.dtype == "bfloat16" else None


def make_case(arguments: argparse.Namespace, name: str, objects: int, train: bool) -> Case:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = MODELS[name]().to(getattr(torch, arguments.dtype))
    options = {"pad_to_multiple_of": 1 if arguments.device == "cpu" else arguments.pad}
    if arguments.four_bit:
        model = in_four_bits(model, tokenizer, arguments.device, adapters(model))
        options["autocast"] = products(arguments)
    elif train:
        model = get_peft_model(model, adapters(model))
    trunk = make_trunk(model.eval(), tokenizer, **options).to(arguments.device)
    kind = RepeatedTrunk if trunk.base_model.config.is_encoder_decoder else RepeatedDecoderOnlyTrunk
    repeated = kind(model, tokenizer, **options).to(arguments.device)
    states = make_states(arguments.batch, objects).to(arguments.device)
    prompt, prompt_mask = trunk.prompt(states["goal_tokens"], states["observation_tokens"])
    return Case(trunk, repeated, states, prompt, prompt_mask)


def build(case: Case) -> None:
    """What the trie costs by itself, without the language model."""
    actions, mask = case.states["action_tokens"], case.states["action_mask"]
    build_trie(actions, mask, 0, case.trunk.prompt.pad_id, leaves=False)


def run(method: str, case: Case, train: bool) -> Tensor | None:
    """Log-likelihoods ``[B, A]`` by one of the methods; backward included in training."""
    parts = []
    with torch.set_grad_enabled(train):
        for part in _STEPS[method](case):
            if train:
                part.float().sum().backward()
            parts.append(part.detach())
    if method == "floor":
        return None
    return torch.cat(parts, 1)


def _naive(case: Case) -> Iterator[Tensor]:
    for action in range(case.states["action_mask"].shape[1]):
        one = case.states.clone()
        for key in ("action_tokens", "action_mask"):
            one[key] = one[key][:, action : action + 1]
        yield case.trunk(one, only="scores")["log_likelihood"]


def _repeat(case: Case) -> Iterator[Tensor]:
    yield case.repeated(case.states.clone(), only="scores")["log_likelihood"]


def _trunk(case: Case, only: str | None) -> Iterator[Tensor]:
    yield case.trunk(case.states.clone(), only=only)["log_likelihood"]


def _floor(case: Case) -> Iterator[Tensor]:
    base = case.trunk.base_model
    reader = base.encoder if base.config.is_encoder_decoder else base.base_model
    with case.trunk._autocast(case.prompt.device):
        read = reader(input_ids=case.prompt, attention_mask=case.prompt_mask).last_hidden_state
    yield read


_STEPS = {
    "naive": _naive,
    "repeat": _repeat,
    "trie": lambda case: _trunk(case, "scores"),
    "trie + embeddings": lambda case: _trunk(case, None),
    "floor": _floor,
}
