"""Quantized linears in place of a model's projections."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench_utils.inference.kernels import INT4, INT8, INT8_TOKEN
from bench_utils.inference.projections import projections
from bench_utils.inference.quantized_linear import (
    QuantizedLinear,
    dequantized_copy,
    quantized_copy,
    quantized_linears,
    resident_bytes,
)
from bench_utils.inference.quantizers import UnusableWeightError, quantize
from tests.conftest import tiny_config
from tests.kernels_here import BF16, needs

TINY_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32}
FAMILIES = {
    "llama": tiny_config(),
    "llama with biases": tiny_config(attention_bias=True, mlp_bias=True),
    "gpt2 (Conv1D)": AutoConfig.for_model("gpt2", **TINY_GPT2),
}


def model_of(config, dtype=BF16):
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", [INT8, INT4], ids=lambda form: form.name)
@torch.inference_mode()
def test_it_computes_as_the_dequantized_model(family, form):
    needs(form)
    model, ids = model_of(FAMILIES[family]), torch.arange(12)[None]
    found = quantized_copy(model, form)(ids).logits.double()
    expected = dequantized_copy(model, form.scheme_for(BF16))(ids).logits.double()
    own = copy.deepcopy(dequantized_copy(model, form.scheme_for(BF16))).float()(ids).logits.double()
    rounding = float((expected - own).abs().max())
    assert float((found - own).abs().max()) <= 4 * rounding
    assert float((expected - model(ids).logits.double()).abs().max()) > rounding, "nothing was quantized"


def test_the_rest_is_shared_and_the_model_is_left_as_it_was():
    needs(INT8_TOKEN)
    model = model_of(tiny_config())
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    shared = quantized_copy(model, INT8_TOKEN)
    assert shared.get_input_embeddings().weight is model.get_input_embeddings().weight
    assert shared.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert set(quantized_linears(shared)) == {name for name, _ in projections(model)}
    assert not quantized_linears(model)
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_resident_bytes_are_codes_scales_and_what_stays():
    needs(INT8_TOKEN)
    model = model_of(tiny_config())
    projected = {name: weight.shape for name, weight in projections(model)}
    others = sum(p.nbytes for name, p in model.named_parameters() if name.removesuffix(".weight") not in projected)
    packed = sum(rows * columns + 4 * rows for rows, columns in projected.values())
    assert resident_bytes(model) == sum(p.nbytes for p in model.parameters())
    assert resident_bytes(quantized_copy(model, INT8_TOKEN)) == others + packed


@torch.inference_mode()
def test_it_quantizes_from_the_finer_weights():
    needs(INT8_TOKEN)
    wide = model_of(tiny_config(), torch.float32)
    model = model_of(tiny_config())
    name, weight = next(projections(wide))
    held = quantized_copy(model, INT8_TOKEN, weights_of=wide).get_submodule(name).kernel.tensors[1]
    assert torch.equal(held, quantize(weight, INT8_TOKEN.scheme).scales)
    assert not torch.equal(held, quantize(next(projections(model))[1], INT8_TOKEN.scheme).scales)


@torch.inference_mode()
def test_the_head_can_be_part_of_the_reference():
    model = model_of(tiny_config())
    reference = dequantized_copy(model, INT8.scheme_for(BF16), head=INT8.scheme_for(BF16))
    expected = quantize(model.get_output_embeddings().weight, INT8.scheme_for(BF16)).dequantize().to(BF16)
    assert torch.equal(reference.get_output_embeddings().weight, expected)
    assert reference.get_input_embeddings().weight is model.get_input_embeddings().weight


def test_a_weight_that_is_not_finite_is_named():
    needs(INT8_TOKEN)
    model = model_of(tiny_config())
    with torch.no_grad():
        model.get_submodule("model.layers.1.mlp.down_proj").weight[0, 0] = float("inf")
    with pytest.raises(UnusableWeightError, match=r"model\.layers\.1\.mlp\.down_proj holds NaN or infinity"):
        quantized_copy(model, INT8_TOKEN)


def test_padded_and_biased_shapes_are_multiplied_whole():
    needs(INT4)
    weight, bias = torch.randn(20, 50), torch.randn(20)
    linear = QuantizedLinear(weight, bias, INT4, BF16)
    x = torch.randn(2, 3, 50).to(BF16)
    product = linear(x)
    assert product.shape == (2, 3, 20)
    expected = x.double() @ quantize(weight, INT4.scheme_for(BF16)).dequantize().double().t() + bias.double()
    assert (
        float((product.double() - expected).abs().max() / expected.abs().max()) < 0.02
    )  # a few spacings of bfloat16
    assert not linear.is_bare
