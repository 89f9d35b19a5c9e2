"""Attention steps against torch's own attention, and a planted fault for each."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from bench_utils.inference.attention import cached_step, grouped_step, make_head, recompute_step

# float32 sums of a few hundred products on values below 4.
TOLERANCE = 1e-5


@pytest.mark.parametrize("num_positions", [1, 2, 17, 300])
def test_a_heads_two_ways_equal_torchs_attention(num_positions):
    head = make_head(num_positions)
    query, key, value = (head.x @ w for w in (head.w_query, head.w_key, head.w_value))
    expected = scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True)[0, -1]
    for step, num_rows in ((recompute_step, num_positions), (cached_step, 1)):
        output, scores = step(head)
        assert torch.allclose(output, expected, atol=TOLERANCE)
        assert scores.shape == (num_rows, num_positions)


def test_a_cached_step_may_be_repeated():
    """It writes the newest row only, and always the same: no state to restore between samples."""
    head = make_head(33)
    first = cached_step(head)[0]
    assert torch.equal(first, cached_step(head)[0])


def test_a_stale_key_in_the_cache_shows():
    head = make_head(50)
    head.keys[7] += 1.0
    assert not torch.allclose(cached_step(head)[0], recompute_step(head)[0], atol=10 * TOLERANCE)


@pytest.mark.parametrize("num_kv_heads", [14, 7, 2, 1])
def test_grouped_heads_equal_torchs_attention(num_kv_heads):
    generator = torch.Generator().manual_seed(num_kv_heads)
    query = torch.randn(2, 14, 64, generator=generator)
    keys, values = (torch.randn(2, num_kv_heads, 40, 64, generator=generator) for _ in range(2))
    expected = scaled_dot_product_attention(query.unsqueeze(2), keys, values, enable_gqa=True).squeeze(2)
    assert torch.allclose(grouped_step(query, keys, values), expected, atol=TOLERANCE)


def test_interleaved_groups_would_show():
    """Query heads 0..6 share kv head 0; the other numbering is the usual mistake."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 14, 64, generator=generator)
    keys, values = (torch.randn(1, 2, 40, 64, generator=generator) for _ in range(2))
    wrong_order = torch.arange(14).view(7, 2).T.flatten()
    right = grouped_step(query, keys, values)
    wrong = grouped_step(query[:, wrong_order], keys, values)[:, wrong_order.argsort()]
    assert not torch.allclose(right, wrong, atol=0.01)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(AssertionError, match="14 query heads over 3 kv heads"):
        grouped_step(torch.zeros(1, 14, 8), torch.zeros(1, 3, 4, 8), torch.zeros(1, 3, 4, 8))
