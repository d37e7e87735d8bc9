"""The methods that bench_scoring.py compares, and the models and states it compares them on."""

import ctypes
import gc
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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

from torchrl_glam.models import CandidateTrunk, load_language_model, make_trunk

sys.path.insert(0, str(Path(__file__).parents[1]))

from flan_t5 import make_tokenizer  # noqa: E402

SPECIAL = {"pad_token_id": 0, "eos_token_id": 1}
T5 = SPECIAL | {"decoder_start_token_id": 0, "vocab_size": 32128, "d_kv": 64}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
SMALL = {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
BASE = {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
QWEN = SPECIAL | {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
GOAL_TOKENS = 10
TINY = SMALL | {"d_model": 64, "num_layers": 1}
MODELS = {
    "tiny": lambda: T5ForConditionalGeneration(T5Config(**T5, **TINY)),
    "t5-small": lambda: T5ForConditionalGeneration(T5Config(**T5, **SMALL)),
    "flan-t5-base": lambda: T5ForConditionalGeneration(T5Config(**T5, **BASE, **GATED)),
    "qwen2-100m": lambda: Qwen2ForCausalLM(Qwen2Config(**QWEN)),
}


class Case(NamedTuple):
    """A language model and a batch of B states with A candidates each."""

    trunk: CandidateTrunk
    states: TensorDict
    prompt: Tensor  # [B, T]
    prompt_mask: Tensor  # [B, T]


def make_states(number: int, objects: int, observed: int | None = None) -> TensorDict:
    """Tokens shaped as Flan-T5's tokenizer cuts Playground-Text with six objects.

    Prompts of 86 to 94 tokens, or with ``observed`` tokens of observation; a candidate "Go to" +
    colour + noun of one or two pieces for every object, and two others of three tokens. Which
    tokens they are makes no difference.
    """
    draw = torch.Generator().manual_seed(0)

    def random(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=draw)

    observation = random(1000, 9000, number, 75 if observed is None else observed)
    if observed is None:
        observation[torch.arange(75) >= random(67, 76, number, 1)] = 0
    others = random(900, 1000, number, 2, 5)
    others[..., 3:] = 0
    go = torch.tensor([10, 11]).expand(number, objects, 2)
    # Objects of a state differ.
    noun = torch.rand(number, 800, generator=draw).argsort(-1)[:, :objects, None] + 100
    noun = torch.cat([noun, random(100, 900, number, objects, 1)], -1)
    noun[..., 1] *= random(0, 2, number, objects)
    going = torch.cat([go, random(20, 28, number, objects, 1), noun], -1)
    return TensorDict(
        {
            "goal_tokens": random(1000, 9000, number, GOAL_TOKENS),
            "observation_tokens": observation,
            "action_tokens": torch.cat([going, others], 1),
            "action_mask": torch.ones(number, objects + 2, dtype=torch.bool),
        },
        batch_size=[number],
    )


def make_model(
    arguments: Any, name: str, tokenizer: PreTrainedTokenizerBase, lora: bool, scale: float = 1.0
) -> tuple[nn.Module, dict[str, Any]]:
    """A model whose last layer has ``scale`` times its random weights; the settings of its trunk.

    Adapters are of rank 16, on queries and values. With ``four_bit`` other weights are in 4 bits,
    as a recipe would load them; these leave float32 between products.
    """
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = MODELS[name]().to(getattr(torch, arguments.dtype)).eval()
    model.get_output_embeddings().weight.data.mul_(scale)
    targets = ["q", "v"] if model.config.is_encoder_decoder else ["q_proj", "v_proj"]
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules=targets)
    if not arguments.four_bit:
        return (get_peft_model(model, adapters).eval() if lora else model), {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        options = {"lora": adapters, "load_in_4bit": True, "dtype": model.dtype}
        loaded, _ = load_language_model(folder, device=arguments.device, **options)
    return loaded, {"autocast": torch.bfloat16 if model.dtype == torch.bfloat16 else None}


def make_case(arguments: Any, name: str, train: bool) -> Case:
    tokenizer, device = make_tokenizer(), arguments.device
    model, options = make_model(arguments, name, tokenizer, lora=train)
    options["pad_to_multiple_of"] = 1 if device == "cpu" else 8
    trunk = make_trunk(model.eval(), tokenizer, **options).to(device)
    observed = arguments.prompt
    if observed is not None:
        observed -= GOAL_TOKENS + trunk.prompt.num_literal_tokens
    states = make_states(arguments.batch, arguments.objects, observed).to(device)
    read = trunk.prompt(states["goal_tokens"], states["observation_tokens"])
    return Case(trunk, states, *read)


def run(method: str, case: Case, train: bool) -> Tensor:
    """Log-likelihoods ``[B, A]`` by one of the methods; backward included in training."""
    parts = []
    with torch.set_grad_enabled(train):
        for part in METHODS[method](case):
            if train:
                part.float().sum().backward()
            parts.append(part.detach())
    case.trunk.zero_grad()
    return torch.cat(parts, 1)


def memory_of(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    """What work returns, and the MiB that it holds at most, above those held before."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        return work(), (torch.cuda.max_memory_allocated() - before) / 2**20
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak of what is held starts anew
    before = _held("VmRSS")
    return work(), _held("VmHWM") - before


def _held(entry: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(entry)) / 1024


def _naive(case: Case) -> Iterator[Tensor]:
    for action in range(case.states["action_mask"].shape[1]):
        one = case.states.clone()
        for key in ("action_tokens", "action_mask"):
            one[key] = one[key][:, action : action + 1]
        yield case.trunk(one, only="scores")["log_likelihood"]


def _floor(case: Case) -> Iterator[Tensor]:
    base = case.trunk.base_model
    reader = base.encoder if base.config.is_encoder_decoder else base.base_model
    with case.trunk._autocast(case.prompt.device):
        yield reader(input_ids=case.prompt, attention_mask=case.prompt_mask).last_hidden_state


METHODS: dict[str, Callable[[Case], Iterator[Tensor]]] = {
    "naive": _naive,
    "trie": lambda case: [case.trunk(case.states.clone(), only="scores")["log_likelihood"]],
    "trie + embeddings": lambda case: [case.trunk(case.states.clone())["log_likelihood"]],
    "floor": _floor,
}
