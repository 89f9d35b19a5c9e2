"""Facts read off configs: what the mechanisms may rely on, and what they refuse."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench_utils.inference.kv_cache import bytes_per_token
from bench_utils.models.cache_layout import UnknownCacheError
from bench_utils.models.facts import cache_shape, decoder_shape, demand_dense
from bench_utils.models.shapes import chapter_config, seven_b_class_config
from tests.conftest import tiny_config
from tests.models.families import SMALL, tiny_of


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("mistral", "sliding_window=5"),
        ("gemma3_text", "sliding_window=5"),
        ("gemma3n_text", "sliding_window=5"),
        ("llama4_text", "attention_chunk_size=5"),
        ("deepseek_v3", "kv_lora_rank=16"),
        ("qwen3_next", "linear_num_key_heads=2"),
        ("gpt2", "model_type='gpt2'"),
    ],
)
def test_a_cache_that_is_counted_but_not_plain_is_refused_by_its_field(family, field):
    with pytest.raises(UnknownCacheError, match=f"config field {field}"):
        cache_shape(tiny_of(family))


def test_experts_have_a_cache_but_no_projections_that_are_counted():
    config = AutoConfig.for_model("mixtral", **{**SMALL, "sliding_window": None})
    assert cache_shape(config).num_layers == 4
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


def test_a_family_with_other_projections_is_named():
    with pytest.raises(UnknownCacheError, match="model_type='gemma'"):
        decoder_shape(tiny_of("gemma"))


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
