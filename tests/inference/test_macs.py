"""Multiply-accumulates by formula against torch's counter, for a head and for whole models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from bench_utils.inference import decode, macs
from bench_utils.inference.attention import cached_step, make_head, recompute_step
from bench_utils.measure.counters import count
from bench_utils.models import facts
from tests.conftest import tiny_config


@pytest.mark.parametrize("num_positions", [1, 5, 64])
def test_a_heads_step_is_counted_to_the_last_mac(num_positions):
    head = make_head(num_positions, 16)
    for step, cached in ((recompute_step, False), (cached_step, True)):
        assert count(lambda step=step: step(head)).macs == macs.head_step_macs(num_positions, 16, cached=cached)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_models_generation_is_counted_to_the_last_mac(family, implementation):
    """Torch's registry leaves the CPU's fused attention out; counting it is this project's own part."""
    shape = tiny_config().to_dict() | {"sliding_window": None}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    kept = {name: shape[name] for name in (*names, "num_key_value_heads", "head_dim")}
    config = AutoConfig.for_model(family, **kept, **({"sliding_window": None} if family == "mistral" else {}))
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    decoder = facts.decoder_shape(config)
    first = torch.zeros(1, 1, dtype=torch.long)
    for generate, cached in ((decode.greedy_cached, True), (decode.greedy_recompute, False)):
        counted = count(lambda generate=generate: generate(model, first, 5)).macs
        assert counted == sum(macs.model_step_macs(decoder, n, cached=cached) for n in range(1, 6))


@settings(deadline=None)
@given(n=st.integers(1, 10_000), d=st.integers(1, 256))
def test_a_recomputed_step_costs_n_cached_ones(n, d):
    """Per step linear against quadratic, exactly: every row does what the cached row does."""
    assert macs.head_step_macs(n, d, cached=False) == n * macs.head_step_macs(n, d, cached=True)


def test_a_step_with_one_product_too_many_is_seen():
    head = make_head(12, 16)

    def wasteful():
        head.x[-1:] @ head.w_query
        cached_step(head)

    assert count(wasteful).macs == macs.head_step_macs(12, 16, cached=True) + 16 * 16


def test_a_causal_prompt_multiplies_what_each_position_attends_to():
    shape = facts.decoder_shape(tiny_config())
    attended = sum(range(1, 8)) * 2 * 4 * 8 * 3  # tokens attended to, scores and sums, H D, layers
    projected = 7 * shape.projection_macs_per_token + shape.head_macs_per_token
    assert macs.prefill_macs(shape, 7, causal=True) == projected + attended
    assert macs.prefill_macs(shape, 7) == projected + 7 * 7 * 2 * 4 * 8 * 3
    assert macs.prefill_macs(shape, 1) == macs.prefill_macs(shape, 1, causal=True)
