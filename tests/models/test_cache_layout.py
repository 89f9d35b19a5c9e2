"""What each layer keeps, read off configs and held against the caches that tiny real models make."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from bench_utils.inference.kv_cache import tensor_bytes
from bench_utils.models.cache_layout import (
    VERIFIED_FAMILIES,
    CacheLayout,
    LayerCache,
    UnknownCacheError,
    cache_layout,
    needed,
)
from tests.models.families import SMALL, WINDOW, tiny_of

# Full layers at other places in the half that owns caches than in the half that shares them.
ASYMMETRIC = [
    *(["full_attention"] * 2 + ["sliding_attention"] * 4),
    *(["full_attention"] + ["sliding_attention"] * 3),
]


@torch.inference_mode()
def real_bytes(config, num_tokens, dtype=torch.float32, batch=2):
    """What the cache's tensors hold after a prefill and two steps: a window has let go by then of what it can."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    ids = torch.zeros(batch, num_tokens - 2, dtype=torch.long)
    cache = model(ids, use_cache=True).cache
    for _ in range(2):
        cache = model(ids[:, :1], cache=cache, use_cache=True).cache
    return tensor_bytes(cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", VERIFIED_FAMILIES)
def test_the_layout_equals_the_real_caches_tensors(family, dtype):
    config = tiny_of(family)
    for num_tokens in (WINDOW - 2, WINDOW + 6):
        counted = 2 * cache_layout(config).bytes(num_tokens, dtype.itemsize)
        assert real_bytes(config, num_tokens, dtype) == counted, f"{num_tokens} tokens"


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"head_dim": 16}),
        ("qwen3", {"head_dim": 16}),
        ("gemma3_text", {"head_dim": 16}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 2}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": WINDOW}),
        ("gpt2", {"num_key_value_heads": 1}),
        ("gemma3n_text", {"num_kv_shared_layers": 0}),
        ("gemma3n_text", {"num_kv_shared_layers": 4, "layer_types": ASYMMETRIC, "sliding_window": 5}),
        ("bloom", {"head_dim": 16}),
        ("opt", {"head_dim": 16}),
        ("llama", {"attention_chunk_size": WINDOW}),
        ("minimax_m2", {"num_key_value_heads": 1}),
    ],
)
def test_the_layout_follows_what_a_config_says_otherwise(family, changes):
    config = tiny_of(family, **changes)
    assert real_bytes(config, WINDOW + 6) == 2 * cache_layout(config).bytes(WINDOW + 6, 4)


@pytest.mark.parametrize(
    ("family", "factor"), [("mistral", 5 / 11), ("gemma3_text", (3 * 5 + 11) / 44), ("deepseek_v3", 24 / 64)]
)
def test_the_plain_formula_would_be_wrong(family, factor):
    """What the tests above would not see if every layer were counted as a plain one of its heads."""
    config = tiny_of(family)
    head_dim = 8
    naive = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 4 * (WINDOW + 6)
    assert cache_layout(config).bytes(WINDOW + 6, 4) == pytest.approx(factor * naive)


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("mamba", {}, "state_size=16 of model_type='mamba'"),
        ("jamba", {}, "mamba_d_state=16 of model_type='jamba'"),
        ("lfm2", {}, "conv_L_cache=3 of model_type='lfm2'"),
        ("kimi_linear", {}, "kv_lora_rank=512 of model_type='kimi_linear'"),
        ("t5", {}, "is_encoder_decoder=True"),
        ("falcon", {"multi_query": True}, "model_type='falcon'"),
        ("bert", {}, "model_type='bert'"),
        ("mistral", {**SMALL, "sliding_window": 1}, "sliding_window=1"),
        ("mistral", {**SMALL, "sliding_window": 0}, "sliding_window=0"),
        ("llama", {**SMALL, "num_kv_shared_layers": 2}, "num_kv_shared_layers=2 of 4 layers of 'llama'"),
        ("llama", {**SMALL, "layer_types": ["full_attention"] * 3 + ["conv"]}, "layer_types holds conv"),
        ("llama", {**SMALL, "per_layer_config": {1: {"num_key_value_heads": 1}}}, "per_layer_config"),
        (
            "deepseek_v3",
            {"layer_types": ["sliding_attention"] * 61},
            "kv_lora_rank=512 with layer_types of sliding",
        ),
    ],
)
def test_a_cache_that_is_not_understood_is_refused_by_its_field(family, changes, field):
    with pytest.raises(UnknownCacheError, match=field):
        cache_layout(AutoConfig.for_model(family, **changes))


def test_a_missing_field_is_named():
    with pytest.raises(UnknownCacheError, match="config field qk_rope_head_dim is missing"):
        needed(tiny_of("llama"), "qk_rope_head_dim")


@settings(deadline=None)
@given(most=st.integers(1, 40), block=st.integers(1, 20), num_tokens=st.integers(1, 120))
def test_a_windows_blocks_are_those_that_a_sequence_touches_on_its_way(most, block, num_tokens):
    """Against the blocks of tokens t - most ... t - 1, for every length t up to the last."""

    def touched(length):
        return len({position // block for position in range(max(0, length - most), length)})

    widest = max(touched(length) for length in range(1, num_tokens + 1))
    assert LayerCache(1, 1, 1, most_tokens=most).num_slots(num_tokens, block) == widest * block


def test_blocks_of_one_are_no_blocks():
    layer = LayerCache(1, 1, 1, most_tokens=7)
    assert [layer.num_slots(num) for num in (1, 7, 8, 100)] == [1, 7, 7, 7]
    assert LayerCache(1, 1, 1).num_slots(100) == 100


def test_no_tokens_keep_no_state_and_any_number_keeps_the_same():
    layout = CacheLayout((LayerCache(state_elements=3, state_float32=5),))
    assert [layout.bytes(num, 2) for num in (0, 1, 100)] == [0, 26, 26]
    assert not layout.depends_on_total_only
