"""Cache shapes read off configs, held against the caches that tiny real models make."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench_utils.inference.kv_cache import bytes_per_token, tensor_bytes
from bench_utils.models.facts import VERIFIED_FAMILIES, UnknownCacheError, cache_shape, decoder_shape, demand_dense
from bench_utils.models.shapes import chapter_config, seven_b_class_config
from tests.conftest import tiny_config

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {"sliding_window": None} if family.startswith("mi") else {}) for family in VERIFIED_FAMILIES),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"head_dim": 16}),
        ("qwen3", {"head_dim": 16}),
    ],
)
def test_the_formula_equals_the_real_caches_tensors(family, changes):
    config = AutoConfig.for_model(family, **{**SMALL, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.inference_mode():
        cache = model(torch.zeros(2, 7, dtype=torch.long), use_cache=True).cache
    assert tensor_bytes(cache) == 2 * 7 * bytes_per_token(cache_shape(config), 4)


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("mistral", {"sliding_window": 16}, "sliding_window"),
        ("gemma3_text", {}, "layer_types"),
        ("deepseek_v3", {}, "kv_lora_rank"),
        ("qwen3_next", {}, "linear_num_key_heads|layer_types"),
        ("mamba", {}, "num_attention_heads|layer_types"),
        ("t5", {}, "is_encoder_decoder"),
        ("falcon", {"multi_query": True}, "model_type='falcon'"),
        ("jamba", {}, "mamba_d_state"),
    ],
)
def test_a_cache_that_is_not_understood_is_refused_by_its_field(family, changes, field):
    keep = SMALL if family in ("mistral", "gemma3_text") else {}
    with pytest.raises(UnknownCacheError, match=field):
        cache_shape(AutoConfig.for_model(family, **{**keep, **changes}))


def test_experts_have_a_cache_but_no_projections_that_are_counted():
    config = AutoConfig.for_model("mixtral", **{**SMALL, "sliding_window": None})
    assert cache_shape(config).num_layers == 2
    with pytest.raises(UnknownCacheError, match="config field model_type='mixtral'"):
        decoder_shape(config)


def test_the_chapters_model_has_the_chapters_numbers():
    shape = decoder_shape(chapter_config())
    assert bytes_per_token(shape.cache, 2) == 12_288
    assert bytes_per_token(cache_shape(chapter_config(14)), 2) == 86_016
    assert bytes_per_token(cache_shape(seven_b_class_config()), 2) == 131_072
    # 168 projection matrices, 357.8 million weights: one multiply-accumulate each for one token.
    assert shape.projection_macs_per_token == 357_826_560
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(chapter_config())
    assert sum(p.numel() for p in model.parameters()) == 494_032_768


def test_a_missing_field_is_named():
    fields = {name: value for name, value in vars(tiny_config()).items() if name != "intermediate_size"}
    with pytest.raises(UnknownCacheError, match="intermediate_size is missing"):
        decoder_shape(SimpleNamespace(model_type="llama", **fields))


@pytest.mark.parametrize(
    ("family", "field"),
    [("mixtral", "num_local_experts"), ("qwen2_moe", "num_experts"), ("qwen3_moe", "num_experts")],
)
def test_a_mixture_of_experts_is_refused_where_a_steps_bytes_matter(family, field):
    changes = {"sliding_window": None} if family == "mixtral" else {}
    config = AutoConfig.for_model(family, **{**SMALL, **changes})
    with pytest.raises(UnknownCacheError, match=r"config field num_(local_)?experts="):
        demand_dense(config)


def test_a_dense_model_is_not():
    demand_dense(tiny_config())
