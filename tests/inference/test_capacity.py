"""What fits: the chapter's table, brute force over small numbers, and real packed tensors."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from bench_utils.inference.capacity import (
    CHAPTER_CLASSES,
    FORMATS,
    OVERHEAD_BYTES,
    Capacity,
    Parameters,
    matrices_of,
    size_of,
)
from bench_utils.inference.projections import linear_maps
from bench_utils.inference.quantizers import quantize
from bench_utils.models.cache_layout import CacheLayout, LayerCache, UnknownCacheError
from bench_utils.models.errors import ModelLoadError
from tests.conftest import tiny_config
from tests.models.families import tiny_of

GIB = 2**30
CHAPTER = {
    ("7b", "fp16"): (0, 11_972, 77_508),
    ("7b", "int8"): (0, 65_378, 130_914),
    ("7b", "int4"): (25_710, 91_246, 156_782),
    ("13b", "fp16"): (0, 0, 0),
    ("13b", "int8"): (0, 3_136, 13_622),
    ("13b", "int4"): (337, 10_822, 21_308),
    ("70b", "fp16"): (0, 0, 0),
    ("70b", "int8"): (0, 0, 0),
    ("70b", "int4"): (0, 0, 0),
}


@pytest.mark.parametrize(("model", "stored"), CHAPTER)
def test_the_chapters_table_to_the_token(model, stored):
    size = CHAPTER_CLASSES[model]
    held = [Capacity(gib * GIB, size.weights.num_bytes(FORMATS[stored]), size.layout) for gib in (8, 16, 24)]
    assert tuple(capacity.num_tokens for capacity in held) == CHAPTER[model, stored]
    assert tuple(capacity.longest_context() for capacity in held) == CHAPTER[model, stored]


def test_the_overhead_and_the_bits_are_the_chapters():
    assert OVERHEAD_BYTES == 1.5 * GIB
    bits = {name: stored.bits for name, stored in FORMATS.items()}
    assert bits == {"fp32": 32, "fp16": 16, "int8": 8, "nf4": Fraction("4.25"), "int4": Fraction("4.125")}
    assert Parameters(3).num_bytes(FORMATS["int4"]) == 2  # 12.375 bits take two bytes


LAYERS = st.builds(
    LayerCache,
    num_heads=st.integers(1, 3),
    key_dim=st.integers(1, 4),
    value_dim=st.integers(0, 4),
    most_tokens=st.none() | st.integers(1, 9),
    state_elements=st.integers(0, 20),
)


@settings(deadline=None, max_examples=200)
@given(
    layers=st.lists(LAYERS, min_size=1, max_size=4),
    cache_bytes=st.integers(-50, 600),
    block=st.integers(1, 5),
    num_users=st.integers(1, 4),
)
def test_the_longest_context_is_the_last_that_fits(layers, cache_bytes, block, num_users):
    """Against counting upwards; the cache grows with every token or not at all, so beyond 700 nothing changes."""
    capacity = Capacity(cache_bytes + 130, 100, CacheLayout(tuple(layers)), element_bytes=2, overhead_bytes=30)
    fitting = [
        num for num in range(1, 700) if num_users * capacity.sequence_bytes(num, block) <= max(cache_bytes, 0)
    ]
    found = capacity.longest_context(block, num_users)
    if found is None:
        assert all(layer.most_tokens is not None for layer in layers)
        assert len(fitting) == 699
    else:
        assert fitting == list(range(1, found + 1))
        if found:
            assert capacity.num_users(found, block) >= num_users
        assert capacity.num_users(found + 1, block) < num_users


@given(num_tokens=st.integers(1, 5_000), block=st.integers(1, 64))
def test_paged_users_are_whole_blocks_of_a_pool(num_tokens, block):
    """floor(pool / ceil(n / b)) blocks of b tokens, as a block manager would count."""
    capacity = Capacity(8 * GIB, GIB, CHAPTER_CLASSES["7b"].layout)
    pool = capacity.cache_bytes // (131_072 * block)
    assert capacity.num_users(num_tokens, block) == pool // -(-num_tokens // block)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "mixtral", "gpt_oss", "llama4_text", "deepseek_v3"])
def test_a_configs_weights_are_the_bytes_of_its_packed_matrices(family):
    """Every linear map quantized for real; what else there is, at two bytes."""
    config = tiny_of(family)
    model = AutoModelForCausalLM.from_config(config)
    size = size_of(config, "tiny")
    num_parameters = sum(p.numel() for p in model.parameters())
    # A router's weights stay in float32 in some families, when the rest is loaded in 16 bit.
    half = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert size.weights.num == num_parameters
    assert size.weights.num_bytes(FORMATS["fp16"]) == sum(p.nbytes for p in half.parameters())
    assert size.weights.num_bytes(FORMATS["fp32"]) == 4 * num_parameters
    num_kept = sum(p.numel() for p in half.parameters() if p.dtype == torch.float32)
    maps = [weight.contiguous() for _, weight in linear_maps(model)]
    num_others = num_parameters - sum(weight.numel() for weight in maps)
    for name in ("int8", "nf4", "int4"):
        packed = sum(quantize(weight, FORMATS[name].scheme).num_bytes for weight in maps)
        assert size.weights.num_bytes(FORMATS[name]) == packed + 2 * num_others + 2 * num_kept


@pytest.mark.parametrize(
    ("family", "num_stacked"), [("mixtral", 8 * 2), ("gpt_oss", 4 * 2), ("llama4_text", 2 * 2)]
)
def test_stacked_experts_are_matrices_that_read_the_hidden_size_or_write_it(family, num_stacked):
    config = tiny_of(family, hidden_size=32, intermediate_size=48)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    stacked = {name: tuple(weight.shape) for name, weight in linear_maps(model) if ".experts." in name}
    in_first_layer = {name: shape for name, shape in stacked.items() if name.startswith("model.layers.0.")}
    assert len(in_first_layer) == num_stacked
    for name, shape in in_first_layer.items():
        assert shape == ((96, 32) if "gate_up" in name else (32, 48)), name


def test_tied_embeddings_are_counted_once():
    tied, own = (size_of(tiny_config(tie_word_embeddings=is_tied), "").weights.num for is_tied in (True, False))
    assert own - tied == 640 * 32


def test_the_chapters_model_has_its_parameters():
    from bench_utils.models.shapes import chapter_config

    size = size_of(chapter_config(), "chapter")
    assert size.weights.num == 494_032_768
    assert size.layout.token_bytes(2) == 12_288


def test_a_cache_that_is_not_understood_is_refused_before_weights_are_laid_out():
    from transformers import AutoConfig

    with pytest.raises(UnknownCacheError, match="mamba_d_state"):
        size_of(AutoConfig.for_model("jamba"), "jamba")


def test_fields_that_do_not_go_together_are_a_clear_error():
    with pytest.raises(ModelLoadError, match="the config of odd makes no causal language model"):
        size_of(tiny_of("llama", hidden_act="no such activation"), "odd")


def test_a_model_of_weights_alone_is_counted_too():
    model = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    model.get_output_embeddings = lambda: None
    assert matrices_of(model).num_bytes(FORMATS["fp16"]) == 2 * 6
