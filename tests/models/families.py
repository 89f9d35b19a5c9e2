"""Tiny configs of every family whose cache is known, with windows that a few tokens fill."""

from transformers import AutoConfig

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
WINDOW = 5
_EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
_LATENT = {
    **{"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 8, "qk_rope_head_dim": 8},
    **{"qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_shared_experts": 1},
}
_GATED_DELTA = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 6, "linear_conv_kernel_dim": 3},
}
_SLIDING = {"sliding_window": WINDOW}
_GEMMA3 = {**SMALL, **_SLIDING, "head_dim": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
_CHANGES = {
    **dict.fromkeys(("cohere2", "exaone4", "gemma2", "ministral3", "mistral", "mixtral", "olmo3"), _SLIDING),
    **dict.fromkeys(("phi3", "starcoder2"), _SLIDING),
    "deepseek_v2": {**_LATENT, "head_dim": 8, "topk_method": "greedy"},
    "deepseek_v3": _LATENT,
    "gemma3_text": _GEMMA3,
    "gemma3n_text": {
        **{"num_hidden_layers": 10, "num_kv_shared_layers": 5, "intermediate_size": [48] * 10, "head_dim": 8},
        **{"activation_sparsity_pattern": [0.0] * 10, "vocab_size_per_layer_input": 64, "laurel_rank": 4},
        **{"hidden_size_per_layer_input": 8, **_SLIDING},
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
    },
    "glm4_moe_lite": _LATENT,
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8, **_SLIDING},
    "llama4_text": {
        **{"attention_chunk_size": WINDOW, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48},
    },
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "olmo_hybrid": _GATED_DELTA,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": {**_GATED_DELTA, "head_dim": 8},
    "qwen3_moe": _EXPERTS,
    "qwen3_next": {**_GATED_DELTA, **_EXPERTS, "head_dim": 8, "shared_expert_intermediate_size": 16},
}
_VISION = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 28, "patch_size": 14},
}


def tiny_of(family, **changes):
    """A tiny config of a family; what it does not know of SMALL it keeps and ignores."""
    if family == "gemma3":
        return AutoConfig.for_model(family, text_config=_GEMMA3, vision_config=_VISION)
    return AutoConfig.for_model(family, **{**SMALL, **_CHANGES.get(family, {}), **changes})
