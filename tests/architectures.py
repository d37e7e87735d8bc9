"""Tiny configurations of many architectures, for the table of what trunks read and how.

Windows, chunks and rotary switches are so small that prompts of the tests are longer.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

_COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
T5_SIZES = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
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
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_FALCON = {k: v for k, v in _COMMON.items() if k != "head_dim"} | {"ffn_hidden_size": 48}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_WINDOW = {"sliding_window": 32}
_LONGROPE = {
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 32,
    },
}

_USUAL = """
    gpt_neox biogpt llama qwen2 qwen3 gemma phi olmo olmo2 stablelm persimmon nemotron glm glm4
    helium smollm3
"""
_AS_BART = "bart mbart pegasus marian blenderbot blenderbot-small m2m_100 plbart mvp fsmt"

DECODERS = {
    **{name: (name, _COMMON) for name in _USUAL.split()},
    "gpt2": ("gpt2", _GPT),
    "gpt_bigcode": ("gpt_bigcode", _GPT),
    "gpt_neo": (
        "gpt_neo",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 256,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 16,
        },
    ),
    "gptj": ("gptj", _GPT | {"rotary_dim": 4}),
    "codegen": ("codegen", _GPT | {"rotary_dim": 4}),
    "openai-gpt": ("openai-gpt", _GPT),
    "ctrl": ("ctrl", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "dff": 48}),
    "opt": (
        "opt",
        _COMMON | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "opt-350m": (
        "opt",
        _COMMON | {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    ),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}),
    "falcon": ("falcon", _FALCON | {"alibi": False}),
    "falcon-alibi": ("falcon", _FALCON | {"alibi": True}),
    "xglm": (
        "xglm",
        {
            "d_model": 32,
            "ffn_dim": 48,
            "num_layers": 2,
            "attention_heads": 4,
            "max_position_embeddings": 256,
        },
    ),
    "mistral": ("mistral", _COMMON | _WINDOW),
    "mixtral": ("mixtral", _COMMON | {"num_local_experts": 4, "sliding_window": None}),
    "qwen2-window": (
        "qwen2",
        _COMMON | _WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen2_moe": ("qwen2_moe", _COMMON | _MOE | {"shared_expert_intermediate_size": 16}),
    "qwen3_moe": ("qwen3_moe", _COMMON | _MOE),
    "gemma2": ("gemma2", _COMMON | _WINDOW | {"query_pre_attn_scalar": 8}),
    "gemma3": ("gemma3_text", _COMMON | _WINDOW | {"query_pre_attn_scalar": 8}),
    "gemma3-multimodal": (
        "gemma3",
        {
            "text_config": _COMMON | _WINDOW | {"query_pre_attn_scalar": 8},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
        },
    ),
    "phi3": ("phi3", _COMMON | {"sliding_window": None}),
    "phi3-longrope": ("phi3", _COMMON | _LONGROPE | {"sliding_window": None}),
    "llama-dynamic-rope": (
        "llama",
        _COMMON
        | {
            "max_position_embeddings": 32,
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
        },
    ),
    "olmoe": ("olmoe", _COMMON | {"num_experts": 4, "num_experts_per_tok": 2}),
    "starcoder2": ("starcoder2", _COMMON | _WINDOW),
    "cohere": ("cohere", _COMMON | {"logit_scale": 0.25}),
    "cohere2": ("cohere2", _COMMON | _WINDOW | {"logit_scale": 0.25}),
    "granite": ("granite", _COMMON | {"logits_scaling": 4.0}),
    "exaone4": ("exaone4", _COMMON | _WINDOW),
    "gpt_oss": ("gpt_oss", _COMMON | _WINDOW | {"num_local_experts": 4}),
    "llama4": (
        "llama4_text",
        _COMMON
        | {
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "attention_chunk_size": 32,
            "num_hidden_layers": 4,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
            "max_position_embeddings": 256,
        },
    ),
    "modernbert-decoder": (
        "modernbert-decoder",
        _COMMON | {"local_attention": 32, "global_attn_every_n_layers": 2},
    ),
    "xlnet": ("xlnet", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    "bert": ("bert", _COMMON | {"is_decoder": True}),
    "mamba": ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "falcon_h1": (
        "falcon_h1",
        _COMMON
        | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
        | {"mamba_n_groups": 1, "mamba_chunk_size": 8},
    ),
    "lfm2": ("lfm2", _COMMON | {"layer_types": ["conv", "full_attention"], "block_dim": 32}),
    "jamba": (
        "jamba",
        _COMMON
        | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4},
    ),
    "bamba": (
        "bamba",
        _COMMON
        | {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16}
        | {"mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8},
    ),
    "recurrent_gemma": (
        "recurrent_gemma",
        _COMMON | {"lru_width": 32, "attention_window_size": 24, "num_hidden_layers": 3},
    ),
    "rwkv": ("rwkv", {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32}),
    "qwen3_next": (
        "qwen3_next",
        _COMMON
        | _MOE
        | {"shared_expert_intermediate_size": 16, "num_hidden_layers": 4}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    ),
}
ENCODER_DECODERS = {
    **{name: (name, BART_SIZES) for name in _AS_BART.split()},
    "t5": ("t5", T5_SIZES),
    "flan-t5": ("t5", T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("mt5", T5_SIZES),
    "umt5": ("umt5", T5_SIZES),
    "longt5-local": ("longt5", T5_SIZES | {"encoder_attention_type": "local", "local_radius": 7}),
    "longt5-global": (
        "longt5",
        T5_SIZES
        | {"encoder_attention_type": "transient-global", "local_radius": 7}
        | {"global_block_size": 4},
    ),
    "switch_transformers": (
        "switch_transformers",
        T5_SIZES
        | {"num_decoder_layers": 2, "num_experts": 4, "expert_capacity": 8}
        | {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    ),
    "pegasus_x": ("pegasus_x", BART_SIZES | {"block_size": 8, "num_global_tokens": 4}),
    "bigbird_pegasus": (
        "bigbird_pegasus",
        BART_SIZES | {"block_size": 4, "num_random_blocks": 1, "attention_type": "original_full"},
    ),
    "led": (
        "led",
        BART_SIZES
        | {"attention_window": [8, 8]}
        | {"max_encoder_position_embeddings": 256, "max_decoder_position_embeddings": 256},
    ),
    "prophetnet": (
        "prophetnet",
        {
            "hidden_size": 32,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "max_position_embeddings": 256,
        },
    ),
    "nllb-moe": ("nllb-moe", BART_SIZES | {"num_experts": 4, "expert_capacity": 64}),
    "t5gemma": (
        "t5gemma",
        {side: _COMMON | _WINDOW | {"query_pre_attn_scalar": 8} for side in ("encoder", "decoder")},
    ),
}
ARCHITECTURES = DECODERS | ENCODER_DECODERS
# T5's fresh weights are as large as trained ones; larger still, and rounding decides its attention.
SCALES = {name: 2.0 if "d_kv" in settings else 4.0 for name, (_, settings) in ARCHITECTURES.items()}


def make_architecture(name, tokenizer, *, scale=1.0, dtype=torch.float32, seed=0, **overrides):
    """A model with fresh weights, or with matrices ``scale`` times as large."""
    kind, settings = ARCHITECTURES[name]
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
