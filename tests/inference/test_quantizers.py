"""Quantizers: the textbook's formulas, published errors, exact bytes, and NF4 as bitsandbytes has it."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench_utils.inference.quantizers import (
    INT4_ASYMMETRIC,
    INT4_GROUPS,
    INT4_ROW,
    INT4_TENSOR,
    INT8_ROW,
    INT8_TENSOR,
    NF4_BLOCKS,
    NF4_DOUBLE,
    NF4_LARGEST_ERROR,
    NF4_LEVELS,
    SCHEMES,
    UnusableWeightError,
    pack_nibbles,
    quantize,
    unpack_nibbles,
)

shapes = st.tuples(st.integers(1, 9), st.integers(1, 300))


def gaussian(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def relative_error(weight, scheme):
    return float((weight - quantize(weight, scheme).dequantize()).norm() / weight.norm())


def textbook(weight, bits):
    """The three lines that every text has, for one scale over all of it."""
    qmax = 2 ** (bits - 1) - 1
    scale = weight.abs().max() / qmax
    return torch.round(weight / scale).clamp(-qmax - 1, qmax) * scale


@pytest.mark.parametrize(("scheme", "bits"), [(INT8_TENSOR, 8), (INT4_TENSOR, 4)])
def test_a_tensors_scale_gives_the_textbooks_weights(scheme, bits):
    weight = gaussian(7, 33)
    assert torch.equal(quantize(weight, scheme).dequantize(), textbook(weight, bits))


@pytest.mark.parametrize(("scheme", "bits"), [(INT8_ROW, 8), (INT4_ROW, 4)])
def test_rows_are_tensors_of_their_own(scheme, bits):
    weight = gaussian(7, 33)
    expected = torch.stack([textbook(row, bits) for row in weight])
    assert torch.equal(quantize(weight, scheme).dequantize(), expected)


@pytest.mark.parametrize("size", [32, 64, 128])
def test_groups_are_tensors_of_their_own_within_a_row_and_the_last_may_be_short(size):
    weight = gaussian(5, 2 * size + 9)
    expected = torch.cat([torch.stack([textbook(g, 4) for g in part]) for part in weight.split(size, dim=1)], dim=1)
    assert torch.equal(quantize(weight, INT4_GROUPS[size]).dequantize(), expected)


def test_asymmetric_groups_use_all_sixteen_levels_and_keep_zero():
    weight = gaussian(4, 256).abs() + 0.5
    weight[0, 3] = 0.0
    packed = quantize(weight, INT4_ASYMMETRIC)
    for row in range(4):
        for start in (0, 128):
            part = weight[row, start : start + 128]
            scale = max(part.max(), torch.tensor(0.0)) / 15
            expected = (part / scale).round().clamp(0, 15) * scale
            assert torch.allclose(packed.dequantize()[row, start : start + 128], expected, atol=1e-6)
    assert packed.dequantize()[0, 3] == 0


@given(shapes, st.sampled_from(sorted(SCHEMES)), st.integers(0, 99))
def test_no_weight_is_off_by_more_than_half_a_step(shape, name, seed):
    """Steps are read from what is kept; a scale kept in int8 is off itself, by up to a 254th of the largest."""
    weight, scheme = gaussian(*shape, seed=seed), SCHEMES[name]
    packed = quantize(weight, scheme)
    restored = packed.dequantize()
    assert restored.shape == weight.shape
    scales = packed.read_scales()
    half = NF4_LARGEST_ERROR if scheme.is_nf4 else 0.5
    slack = 1e-6 + (float(scales.max()) / 100 if scheme.is_double else 0.0)
    if scheme.is_asymmetric:  # the zero point rounds too
        half = 1.0
    assert float((weight - restored).abs().max()) <= half * float(scales.max()) + slack


@given(shapes, st.sampled_from(sorted(SCHEMES)))
def test_bytes_are_those_of_the_formula(shape, name):
    scheme = SCHEMES[name]
    packed = quantize(gaussian(*shape), scheme)
    num_weights, num_scales = math.prod(shape), scheme.num_territories(shape)
    codes = num_weights if scheme.bits == 8 else -(-num_weights // 2)
    zeros = -(-num_scales // 2) if scheme.is_asymmetric else 0
    scales = num_scales + 4 * -(-num_scales // 256) + 4 if scheme.is_double else 4 * num_scales
    assert packed.num_bytes == codes + scales + zeros
    assert packed.bits_per_weight == 8 * packed.num_bytes / num_weights


@pytest.mark.parametrize(
    ("scheme", "bits"),
    [(INT4_GROUPS[128], 4.125), (NF4_BLOCKS[64], 4.25), (NF4_BLOCKS[128], 4.125), (INT4_GROUPS[32], 4.5)],
)
def test_sixteen_bit_scales_cost_what_the_chapter_says(scheme, bits):
    packed = quantize(gaussian(64, 1024), replace(scheme, scale_dtype=torch.float16))
    assert packed.bits_per_weight == bits


def test_double_quantization_costs_what_qlora_says():
    assert quantize(gaussian(1024, 1024), NF4_DOUBLE).bits_per_weight == pytest.approx(4.127, abs=5e-4)


@pytest.mark.parametrize(
    ("scheme", "columns", "error"),
    [
        (NF4_BLOCKS[64], 4864, 0.0920),
        (INT4_GROUPS[64], 4864, 0.1077),
        (INT4_GROUPS[128], 4864, 0.1174),
        (INT4_ASYMMETRIC, 4864, 0.1006),
        (INT4_ROW, 4864, 0.159),
        (INT4_TENSOR, 4864, 0.209),
        (INT8_ROW, 4864, 0.0088),
        (INT8_TENSOR, 4864, 0.0115),
    ],
)
def test_the_error_on_gaussian_weights_is_the_published_one(scheme, columns, error):
    """One seed; the largest of 4 million numbers moves the tensor's error by a few per cent, the others' less."""
    assert relative_error(gaussian(896, columns), scheme) == pytest.approx(error, rel=0.06)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [64, 128])
def test_nf4_is_bitsandbytes_bit_for_bit(block, dtype):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    weight = gaussian(48, 1536, seed=block).to(dtype)
    theirs, state = bitsandbytes.functional.quantize_4bit(
        weight, blocksize=block, quant_type="nf4", compress_statistics=False
    )
    ours = quantize(weight, NF4_BLOCKS[block])
    assert torch.equal(ours.codes, theirs.flatten())
    assert torch.equal(ours.scales, state.absmax)
    assert torch.equal(torch.tensor(NF4_LEVELS), state.code)


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_what_is_zero_stays_zero(name):
    weight = gaussian(6, 300)
    weight[2] = 0.0
    assert torch.equal(quantize(weight, SCHEMES[name]).dequantize()[2], torch.zeros(300))
    assert torch.equal(quantize(torch.zeros(3, 5), SCHEMES[name]).dequantize(), torch.zeros(3, 5))


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_the_weight_itself_is_left_alone(name):
    weight = gaussian(6, 256)
    before = weight.clone()
    quantize(weight, SCHEMES[name])
    assert torch.equal(weight, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name", ["int8 tensor", "int4 group 64", "int4 group 128 asymmetric", "NF4 block 64 double"]
)
def test_a_weight_that_is_not_finite_is_refused_by_name(name, bad):
    weight = gaussian(4, 200)
    weight[3, 150] = bad
    with pytest.raises(UnusableWeightError, match=r"layers\.3\.down_proj holds NaN or infinity"):
        quantize(weight, SCHEMES[name], "layers.3.down_proj")


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2), (0, 4)])
def test_what_is_no_matrix_is_refused(shape):
    with pytest.raises(UnusableWeightError, match="is no matrix"):
        quantize(torch.zeros(shape), INT8_ROW)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=50))
def test_nibbles_come_back_and_the_first_is_the_high_one(codes):
    packed = pack_nibbles(torch.tensor(codes, dtype=torch.uint8))
    assert packed.numel() == -(-len(codes) // 2)
    assert int(packed[0]) >> 4 == codes[0]
    assert unpack_nibbles(packed, len(codes)).tolist() == codes


def test_a_product_is_that_of_the_weight_it_stands_for():
    weight, x = gaussian(16, 64), gaussian(3, 64, seed=1)
    packed = quantize(weight, INT4_GROUPS[32])
    assert torch.allclose(packed.matmul(x), x @ packed.dequantize().T)
