"""Counters of products and kernels."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from bench_utils.measure import counters
from bench_utils.measure.counters import count


def test_a_matrix_product_is_counted_exactly():
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    assert count(lambda: a @ b).macs == 3 * 5 * 7


def test_products_inside_composite_operators_are_counted_as_torchs_own_counter_does():
    rows, weight = torch.ones(2, 6, 8), torch.ones(8, 8)

    def run():
        hidden = torch.nn.functional.linear(rows, weight)
        scores = torch.matmul(hidden, hidden.transpose(-1, -2)).softmax(-1)
        return torch.einsum("bij,bjd->bid", scores, hidden)

    with torch.inference_mode(), FlopCounterMode(display=False) as flops:
        run()
    assert 2 * count(run).macs == flops.get_total_flops() > 0


def test_fused_attention_on_a_cpu_counts_what_the_unfused_one_does():
    query, key = torch.ones(2, 4, 6, 8), torch.ones(2, 4, 9, 8)
    fused = count(lambda: scaled_dot_product_attention(query, key, key))
    unfused = count(lambda: (query @ key.transpose(-1, -2)).softmax(-1) @ key)
    assert fused.macs == unfused.macs == 2 * (2 * 4 * 6 * 9 * 8)


def test_attention_without_a_formula_is_refused_not_counted_as_nothing(monkeypatch):
    monkeypatch.setattr(counters, "_FORMULAS_MISSING_IN_TORCH", ())
    query = torch.ones(1, 2, 6, 8)
    with pytest.raises(ValueError, match=r"no formula for .*attention"):
        count(lambda: scaled_dot_product_attention(query, query, query))


def test_kernels_are_counted_and_views_are_not():
    a = torch.ones(4, 4)
    assert count(lambda: a.t().view(4, 4)[1:]).num_kernels == 0
    one = count(lambda: a + 1).num_kernels
    assert one == 1
    assert count(lambda: (a + 1).t() * 2).num_kernels == 2


def test_one_redundant_copy_shows():
    a = torch.ones(4, 4)
    assert count(lambda: (a @ a).clone()).num_kernels == count(lambda: a @ a).num_kernels + 1


def test_a_backward_pass_is_counted_with_what_it_multiplies():
    weight = torch.ones(5, 7, requires_grad=True)
    rows = torch.ones(3, 5)
    with counters.Dispatched() as forward:
        loss = (rows @ weight).sum()
    with counters.Dispatched() as backward:
        loss.backward()
    assert forward.macs == 3 * 5 * 7
    assert backward.macs == 3 * 5 * 7, "the gradient of the weight; the rows want none"
    assert backward.num_kernels > 0


def test_what_no_formula_counts_is_named_and_the_kernels_are_counted_all_the_same(monkeypatch):
    monkeypatch.setattr(counters, "_FORMULAS_MISSING_IN_TORCH", ())
    query = torch.ones(1, 2, 6, 8)
    with torch.inference_mode(), counters.Dispatched() as counted:
        scaled_dot_product_attention(query, query, query)
    assert counted.num_kernels >= 1
    assert counted.unknown
    with pytest.raises(ValueError, match="no formula"):
        _ = counted.macs
