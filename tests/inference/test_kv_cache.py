"""Real caches against the formula, for shapes that no list foresaw."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_utils.inference.kv_cache import (
    bytes_per_token,
    filled_cache,
    tensor_bytes,
    tokens_where_cache_outweighs,
)
from bench_utils.models.facts import cache_shape
from tests.conftest import tiny_config


@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, 5),
    num_tokens=st.integers(1, 40),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1)]),
    layers=st.integers(1, 4),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_every_filled_cache_equals_the_formula(batch, num_tokens, heads, layers, dtype):
    config = tiny_config(num_attention_heads=heads[0], num_key_value_heads=heads[1], num_hidden_layers=layers)
    cache = filled_cache(config, batch=batch, num_tokens=num_tokens, dtype=dtype, device="cpu")
    assert tensor_bytes(cache) == batch * num_tokens * bytes_per_token(cache_shape(config), dtype.itemsize)
    assert cache.get_seq_length() == num_tokens


def test_a_cache_without_memory_has_the_same_bytes():
    kept = {"batch": 2, "num_tokens": 9, "dtype": torch.float16}
    on_cpu, on_meta = (filled_cache(tiny_config(), device=device, **kept) for device in ("cpu", "meta"))
    assert tensor_bytes(on_cpu) == tensor_bytes(on_meta)


def test_seeded_contents_are_repeatable_and_differ_by_layer():
    a, b = (
        filled_cache(tiny_config(), batch=1, num_tokens=4, dtype=torch.float32, device="cpu", seed=5) for _ in "ab"
    )
    assert torch.equal(a.layers[1].keys, b.layers[1].keys)
    assert not torch.equal(a.layers[0].keys, a.layers[1].keys)


@pytest.mark.parametrize(
    ("weights", "token", "first"), [(100, 10, 11), (99, 10, 10), (14_000_000_000, 131_072, 106_812)]
)
def test_the_crossing_is_the_first_token_beyond(weights, token, first):
    assert tokens_where_cache_outweighs(weights, token) == first
    assert (first - 1) * token <= weights < first * token
