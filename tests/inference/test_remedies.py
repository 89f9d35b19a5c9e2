"""The remedies against outliers: their exact invariants, and other implementations of the same."""

import logging
from itertools import pairwise

import pytest
import torch

from bench_utils.inference import kernels
from bench_utils.inference.gptq import gptq, hessian
from bench_utils.inference.kernels import INT8_TOKEN, quantize_tokens
from bench_utils.inference.quantizers import (
    INT4_ASYMMETRIC,
    INT4_GROUPS,
    INT4_ROW,
    INT4_TENSOR,
    NF4_BLOCKS,
    UnusableWeightError,
    quantize,
)
from bench_utils.inference.remedies import (
    Int8Weight,
    awq_scales,
    awq_weight,
    mixed_product,
    quantize_whole,
    smoothing_scales,
)
from tests.kernels_here import needs

GENERATOR_SEED = 11


@pytest.fixture
def random():
    return torch.Generator().manual_seed(GENERATOR_SEED)


def activations(random, num_tokens=96, columns=64, outliers=(3, 40)):
    """Activations with a few inputs that reach far, and weights (N, K) to multiply them by."""
    x = torch.randn(num_tokens, columns, generator=random)
    x[:, list(outliers)] *= 30
    return x, torch.randn(48, columns, generator=random) * 0.05


# --- int8 products


def test_int8_products_are_those_of_the_values_that_the_codes_stand_for(random):
    needs(INT8_TOKEN, dtype=torch.float32)
    x, weight = activations(random)
    for per_row, quantized in ((True, quantize_tokens(x)), (False, quantize_whole(x))):
        held = Int8Weight.of(weight, per_row=per_row)
        values = held.codes.double() * held.scales.double().view(-1, 1)
        expected = (quantized[0].double() * quantized[1].double()) @ values.t()
        assert torch.allclose(held.multiply(*quantized).double(), expected, rtol=1e-5, atol=1e-6)
        assert float((values - weight).abs().max()) <= float(held.scales.max()) / 2 * (1 + 1e-5)


def test_one_scale_for_all_is_off_by_half_its_step(random):
    x, _ = activations(random)
    codes, scale = quantize_whole(x)
    assert float((codes * scale - x).abs().max()) <= float(scale) / 2 * (1 + 1e-5)
    assert int(codes.abs().max()) == 127


def test_a_weight_that_is_not_finite_is_named():
    with pytest.raises(UnusableWeightError, match="layer 2 o holds NaN"):
        Int8Weight.of(torch.tensor([[float("nan")]]), per_row=True, name="layer 2 o")


# --- LLM.int8()


def test_llm_int8_without_outliers_is_the_int8_product(random):
    x, weight = activations(random, outliers=())
    held = Int8Weight.of(weight, per_row=True)
    assert float(x.abs().max()) < 6
    assert torch.equal(mixed_product(x, held), held.multiply(*quantize_tokens(x)))


def test_llm_int8_with_every_input_an_outlier_leaves_activations_as_they_are(random):
    x, weight = activations(random)
    held = Int8Weight.of(weight, per_row=True)
    values = held.codes.float() * held.scales[:, None]
    assert torch.allclose(mixed_product(x, held, threshold=0.0), x @ values.t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("reach", "is_one"), [(6.0, True), (-6.0, True), (5.99, False)])
def test_an_outlier_reaches_six_either_way_in_any_token(random, reach, is_one):
    x, weight = torch.rand(8, 64, generator=random), activations(random)[1]
    x[5, 9] = reach
    held = Int8Weight.of(weight, per_row=True)
    expected = held.multiply(*quantize_tokens(x))
    if is_one:
        columns = x.clone()
        columns[:, torch.arange(64) != 9] = 0
        rest = x - columns
        expected = held.multiply(*quantize_tokens(rest)) + columns @ (held.codes.float() * held.scales[:, None]).t()
    assert torch.allclose(mixed_product(x, held), expected, rtol=1e-5, atol=1e-5)


def test_llm_int8_has_less_error_than_int8(random):
    needs(INT8_TOKEN, dtype=torch.float32)
    x, weight = activations(random)
    held, exact = Int8Weight.of(weight, per_row=True), x @ weight.t()
    plain = (held.multiply(*quantize_tokens(x)) - exact).norm()
    assert (mixed_product(x, held) - exact).norm() < plain / 2


def test_llm_int8_is_that_of_bitsandbytes(random):
    """Its Linear8bitLt in eval(), which rounds to float16 three times on the way, by half a spacing each."""
    needs(INT8_TOKEN, dtype=torch.float32)
    library = pytest.importorskip("bitsandbytes") and kernels.bitsandbytes()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    x, weight = activations(random)
    linear = library.nn.Linear8bitLt(64, 48, bias=False, has_fp16_weights=False, threshold=6.0)
    linear.weight = library.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False)
    linear = linear.to("cpu").eval()
    with torch.inference_mode():
        theirs = linear(x.half()).float()
    ours = mixed_product(x.half().float(), Int8Weight.of(weight.half().float(), per_row=True))
    exact = x @ weight.t()
    assert float((ours - theirs).norm() / exact.norm()) < 3 * torch.finfo(torch.float16).eps / 2
    assert float((theirs - exact).norm() / exact.norm()) < 0.02


# --- SmoothQuant


def test_smoothquant_leaves_the_products_as_they_are(random):
    x, weight = (each.double() for each in activations(random))
    scales = smoothing_scales(x, [weight])
    assert torch.allclose((x / scales) @ (weight * scales).t(), x @ weight.t(), rtol=1e-12, atol=1e-12)


def test_smoothquant_gives_inputs_and_weights_the_same_range(random):
    """At alpha = 1/2, over all the weights that read the same activations."""
    x, weight = activations(random)
    weights = [weight[:16], weight[16:] * 3]
    scales = smoothing_scales(x, weights)
    of_weights = torch.stack([(each * scales).abs().amax(0) for each in weights]).amax(0)
    assert torch.allclose((x / scales).abs().amax(0), of_weights, rtol=1e-5)


def test_smoothquant_at_alpha_1_leaves_the_weights_all_the_difficulty(random):
    x, weight = activations(random)
    assert torch.allclose((x / smoothing_scales(x, [weight], alpha=1.0)).abs().amax(0), torch.ones(64))


def test_smoothquant_survives_inputs_that_are_never_active(random):
    x, weight = activations(random)
    x[:, 7] = weight[:, 9] = 0
    assert bool(smoothing_scales(x, [weight]).isfinite().all())


# --- AWQ


def test_awq_with_scales_of_one_is_rounding(random):
    _, weight = activations(random)
    plain = quantize(weight, INT4_ASYMMETRIC).dequantize()
    assert torch.equal(awq_weight(weight, torch.ones(64), INT4_ASYMMETRIC), plain)


@pytest.mark.parametrize("num_weights", [1, 2])
def test_awq_takes_the_best_of_its_twenty_over_all_that_read_the_same(random, num_weights):
    x, first = activations(random)
    second = torch.randn(24, 64, generator=random)
    second[:, [3, 40]] = 0  # what reaches far has no weight here: alone it would want other scales
    weights = [first, 20 * second][:num_weights]
    scales, ratio = awq_scales(x, weights, INT4_GROUPS[32])

    def loss(scales):
        return sum(
            float((x @ awq_weight(weight, scales, INT4_GROUPS[32]).t() - x @ weight.t()).square().sum())
            for weight in weights
        )

    def scales_of(ratio):
        powered = x.abs().mean(0) ** ratio
        return powered / (powered.max() * powered.min()) ** 0.5

    losses = {index / 20: loss(scales_of(index / 20)) for index in range(20)}
    assert ratio == min(losses, key=losses.get)
    assert loss(scales) == pytest.approx(losses[ratio], rel=1e-4)
    if num_weights == 1:
        assert losses[ratio] < losses[0.0] / 1.5, "outliers are what it is for"
    else:
        assert ratio != awq_scales(x, [first], INT4_GROUPS[32])[1]
    assert float(scales.max() * scales.min()) == pytest.approx(1.0, rel=1e-5)


def test_awq_is_rounding_where_all_inputs_are_alike(random):
    x, weight = torch.ones(8, 64), activations(random)[1]
    scales, ratio = awq_scales(x, [weight], INT4_ASYMMETRIC)
    assert ratio == 0.0
    assert torch.equal(scales, torch.ones(64))


# --- GPTQ


SCHEMES = [INT4_ROW, INT4_GROUPS[32], INT4_ASYMMETRIC]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("columns", [64, 200, 300])
def test_gptq_with_an_identity_hessian_is_rounding(random, scheme, columns):
    weight = torch.randn(16, columns, generator=random)
    assert torch.equal(gptq(weight, torch.eye(columns), scheme), quantize(weight, scheme).dequantize())


def one_by_one(weight, second, size, qmax=7, damping=0.01):
    """The same in the paper's first form: the inverse itself, a column eliminated after each step; in float64."""
    rest, second = weight.double().clone(), second.double().clone()
    second += damping * second.diag().mean() * torch.eye(len(second), dtype=torch.float64)
    inverse, rounded = torch.linalg.inv(second), torch.empty_like(rest)
    for column in range(rest.shape[1]):
        if column % size == 0:
            scale = rest[:, column : column + size].abs().amax(1) / qmax
        rounded[:, column] = (rest[:, column] / scale).round().clamp(-qmax - 1, qmax) * scale
        error = (rest[:, column] - rounded[:, column]) / inverse[column, column]
        rest[:, column + 1 :] -= torch.outer(error, inverse[column, column + 1 :])
        inverse = inverse - torch.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    return rounded


@pytest.mark.parametrize("columns", [64, 160])
def test_gptq_is_the_elimination_of_one_column_after_another(random, columns):
    """Float32 against float64: a weight on the edge of two codes may fall otherwise, one in a thousand here."""
    x, _ = activations(random, num_tokens=400, columns=columns)
    weight, second = torch.randn(16, columns, generator=random), hessian(x)
    found, expected = gptq(weight, second, INT4_GROUPS[32]).double(), one_by_one(weight, second, 32)
    differing = ((found - expected).abs() > 1e-3).double().mean()
    assert float(differing) <= 1e-3


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("in_order", [True, False])
def test_gptq_loses_less_than_rounding_on_what_it_saw(random, scheme, in_order):
    mixing = torch.randn(200, 200, generator=random) / 10
    x = torch.randn(600, 200, generator=random) @ mixing  # inputs that go together, as real ones do
    weight = torch.randn(24, 200, generator=random)
    moved, plain = gptq(weight, hessian(x), scheme, in_order=in_order), quantize(weight, scheme).dequantize()
    losses = [float((x @ (each - weight).t()).square().sum()) for each in (moved, plain)]
    assert losses[0] < losses[1] / 1.5


def test_gptq_by_activity_takes_the_most_active_first(random):
    mixing = torch.randn(200, 200, generator=random) / 10
    x = (torch.randn(600, 200, generator=random) @ mixing) * torch.logspace(-2, 0, 200)
    weight = torch.randn(24, 200, generator=random)

    def loss(in_order):
        moved = gptq(weight, hessian(x), INT4_ROW, in_order=in_order)
        return float((x @ (moved - weight).t()).square().sum())

    assert loss(in_order=False) < loss(in_order=True) / 1.5


@pytest.mark.parametrize("spread", [0.1, 0.03, 0.01])
def test_gptq_keeps_its_digits_where_inputs_all_but_agree(random, spread):
    """Fewer tokens than inputs, and one direction that carries nearly all: the damped Hessian is still sound."""
    x = spread * torch.randn(96, 256, generator=random) + torch.outer(
        torch.randn(96, generator=random), torch.randn(256, generator=random)
    )
    weight = torch.randn(8, 256, generator=random)
    found = gptq(weight, hessian(x), INT4_GROUPS[32]).double()
    expected = one_by_one(weight, hessian(x.double()), 32)
    losses = [float((x.double() @ (each - weight.double()).t()).square().sum()) for each in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_gptq_by_activity_rounds_the_most_active_columns_as_they_are(random):
    x, weight = torch.randn(300, 64, generator=random), torch.randn(8, 64, generator=random)
    x[:, 50] *= 100
    moved = gptq(weight, hessian(x), INT4_ROW, in_order=False)
    plain = quantize(weight, INT4_ROW).dequantize()
    assert torch.equal(moved[:, 50], plain[:, 50])


def test_gptq_gives_dead_inputs_no_weight(random):
    x, weight = torch.randn(300, 64, generator=random), torch.randn(8, 64, generator=random)
    x[:, [5, 6]] = 0
    moved = gptq(weight, hessian(x), INT4_ROW)
    assert moved[:, [5, 6]].count_nonzero() == 0
    assert bool(moved.isfinite().all())


@pytest.mark.parametrize("scheme", [INT4_TENSOR, NF4_BLOCKS[64]], ids=lambda scheme: scheme.name)
def test_gptq_wants_scales_of_rows_or_groups(scheme):
    with pytest.raises(ValueError, match="needs scales by row or by group"):
        gptq(torch.ones(4, 64), torch.eye(64), scheme)


def test_a_hessian_that_is_none_is_refused():
    second = torch.eye(8)
    second[0, 1] = second[1, 0] = 5.0
    with pytest.raises(ValueError, match="not positive definite"):
        gptq(torch.ones(4, 8), second, INT4_ROW)


def test_the_hessian_is_twice_the_mean_square(random):
    x = torch.randn(50, 6, generator=random)
    assert torch.allclose(hessian(x), 2 * sum(torch.outer(row, row) for row in x) / 50, atol=1e-5)


def test_the_grid_is_chosen_from_weights_that_were_moved_already(random):
    """A group's scale is that of its weights when its turn comes, not of those that were loaded."""
    x, _ = activations(random, num_tokens=400)
    x = x @ torch.randn(64, 64, generator=random)
    weight = torch.randn(8, 64, generator=random)
    moved = gptq(weight, hessian(x), INT4_GROUPS[32])
    for group in (moved[:, :32], moved[:, 32:]):
        for row in group:
            levels = row.abs().unique()
            ratios = levels / min(b - a for a, b in pairwise(levels.tolist()) if b - a > 1e-4)
            assert float((ratios - ratios.round()).abs().max()) < 0.05
