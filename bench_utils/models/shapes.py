"""Configurations written out: the chapter's model, its head variants, and its 7B class."""

from transformers import LlamaConfig, Qwen2Config


def chapter_config(num_kv_heads: int = 2) -> Qwen2Config:
    """Qwen2.5-0.5B-Instruct to the last dimension; 14 kv heads make it MHA, 1 makes it MQA.

    Source: the published config.json of the model.
    """
    return Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4_864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=151_643,
        eos_token_id=151_645,
    )


def seven_b_class_config() -> LlamaConfig:
    """A 7B-class model with grouped-query attention: 32 layers, 32 query and 8 kv heads of dimension 128."""
    return LlamaConfig(
        vocab_size=32_000,
        hidden_size=4_096,
        intermediate_size=11_008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
    )
