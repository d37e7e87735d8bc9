"""Tiny language models of every family, and the plain computation that trunks must equal.

The plain computation reads one candidate of one state at a time, from text, with nothing of the
library but the words of the prompt.
"""

import torch
from tensordict import TensorDict
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

T5_SIZES = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
_ROTARY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Larger weights than usual, so that a wrong mask or position shows.
    "initializer_range": 0.3,
}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}
BART_SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 256,
}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
FAMILIES = {
    "t5": (T5ForConditionalGeneration, T5Config, T5_SIZES | {"tie_word_embeddings": True}),
    "flan-t5": (T5ForConditionalGeneration, T5Config, T5_SIZES | _GATED),
    "umt5": (UMT5ForConditionalGeneration, UMT5Config, T5_SIZES),
    "bart": (
        BartForConditionalGeneration,
        BartConfig,
        BART_SIZES | {"init_std": 0.3},
    ),
    "gpt2": (GPT2LMHeadModel, GPT2Config, _GPT2),
    "llama": (LlamaForCausalLM, LlamaConfig, _ROTARY),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, _ROTARY),
}

GOALS = ["Grasp red lion", "Grow any plant then grasp blue door", "Grow green rose"]
OBSERVATIONS = [
    "You see: red lion, blue cat\nYou are on: nothing",
    "You see: green rose, blue door, red water\nYou are on: green rose\nYou are holding: nothing",
    "You see: red food",
]
# "Go to" is a prefix of other candidates, slots may be empty.
ACTIONS = [
    ["Go to red lion", "Go to red food", "Grasp", "Release", "Go to blue cat"],
    ["Go to green rose", "Go to", "Grasp", "Release", "Go to green rose rose"],
    ["Go to red food", "Grasp", "Release", "", ""],
]


def make_model(family, tokenizer, seed=0, attention="sdpa", **overrides):
    torch.manual_seed(seed)
    model, config, settings = FAMILIES[family]
    special = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if config in (T5Config, UMT5Config, BartConfig):
        special["decoder_start_token_id"] = tokenizer.pad_token_id
    model = model(config(**(special | settings | overrides))).eval()
    model.set_attn_implementation(attention)
    if family == "bart":
        torch.nn.init.normal_(model.final_logits_bias)
    return model


def token_rows(tokenizer, texts, width, lead):
    """Right-padded tokens, one row a text."""
    rows = [tokenizer(lead + t, add_special_tokens=False).input_ids if t else [] for t in texts]
    return torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])


def make_states(tokenizer, masked=(), goals=GOALS, observations=OBSERVATIONS, actions=ACTIONS):
    mask = torch.tensor([[text != "" for text in row] for row in actions])
    for state, action in masked:
        mask[state, action] = False
    action_tokens = [token_rows(tokenizer, row, 24, " ") for row in actions]
    return TensorDict(
        {
            "goal_tokens": token_rows(tokenizer, goals, 40, " "),
            "observation_tokens": token_rows(tokenizer, observations, 100, "\n"),
            "action_tokens": torch.stack(action_tokens),
            "action_mask": mask,
        },
        batch_size=[len(goals)],
    )


def make_nine_states(tokenizer):
    """Every goal in every scene."""
    return torch.cat([make_states(tokenizer, goals=[goal] * 3) for goal in GOALS])


def plain_score(model, tokenizer, goal, observation, action):
    """Log-likelihood, hidden state after the last token, and hidden state before the first."""
    prompt = f"Goal: {goal}\n{observation}\nAction:"
    candidate = tokenizer(" " + action, add_special_tokens=False).input_ids
    if model.config.is_encoder_decoder:
        before = [model.config.decoder_start_token_id]
        out = model(
            input_ids=torch.tensor([tokenizer(prompt).input_ids]),
            decoder_input_ids=torch.tensor([before + candidate]),
            output_hidden_states=True,
        )
        hidden = out.decoder_hidden_states[-1][0]
    else:
        before = tokenizer(prompt, add_special_tokens=False).input_ids
        out = model(input_ids=torch.tensor([before + candidate]), output_hidden_states=True)
        hidden = out.hidden_states[-1][0]
    first = len(before) - 1
    log_probs = out.logits[0].log_softmax(-1)
    total = sum(log_probs[first + i, token] for i, token in enumerate(candidate))
    return total, hidden[-1], hidden[first]
