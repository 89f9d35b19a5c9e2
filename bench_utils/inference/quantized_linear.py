"""Quantized linear maps in place of a model's projections, for any transformers model."""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench_utils.inference.kernel_choice import lay_out
from bench_utils.inference.kernels import Format
from bench_utils.inference.projections import projections
from bench_utils.inference.quantizers import Scheme, quantize


class QuantizedLinear(nn.Module):
    """X (..., K) to (..., N) by a weight that is kept quantized; x in the dtype that it was laid out for.

    Raises:
        UnusableWeightError: the weight is not finite; `name` stands for it.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        format: Format,  # noqa: A002 - the field's word
        dtype: torch.dtype,
        name: str = "the weight",
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.kernel, packed = lay_out(weight, format, dtype, name)
        self._rows_added, self._columns_added = (
            packed.shape[0] - self.out_features,
            packed.shape[1] - self.in_features,
        )
        self.bias = None if bias is None else nn.Parameter(bias.to(dtype), requires_grad=False)

    @property
    def is_bare(self) -> bool:
        """Whether there is nothing to do beside the kernel."""
        return self.bias is None and not self._rows_added and not self._columns_added

    @property
    def num_bytes(self) -> int:
        """Of the weight as it is laid out, its padding too, and of the bias."""
        return self.kernel.num_bytes + (0 if self.bias is None else int(self.bias.nbytes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product, and the bias added."""
        tokens = x.reshape(-1, self.in_features)  # (M, K)
        if self._columns_added:
            tokens = functional.pad(tokens, (0, self._columns_added))
        product = self.kernel(tokens)
        if self._rows_added:
            product = product[:, : self.out_features]
        if self.bias is not None:
            product = product + self.bias
        return product.view(*x.shape[:-1], self.out_features)


def quantized_copy(model: Any, format: Format, *, weights_of: Any | None = None) -> Any:  # noqa: A002
    """The model with its projections quantized; all else is shared with it.

    `weights_of`: the same model in a finer dtype, to quantize from. The language-model head stays as it is.

    Raises:
        NotApplicableError: it has no linear projections.
        UnusableWeightError: naming the weight that is not finite.
    """
    dtype = next(model.parameters()).dtype
    shared = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    for name, weight in list(projections(model if weights_of is None else weights_of)):
        bias = model.get_submodule(name).bias
        shared.set_submodule(name, QuantizedLinear(weight, bias, format, dtype, name))
    return shared


def quantized_linears(model: Any) -> dict[str, QuantizedLinear]:
    """Those of a quantized copy, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}


def resident_bytes(model: Any) -> int:
    """Bytes of all weights as they are kept, tied ones once: quantized projections, and all else as it is."""
    parameters = sum(int(parameter.nbytes) for parameter in model.parameters())  # biases of quantized ones too
    return parameters + sum(linear.kernel.num_bytes for linear in quantized_linears(model).values())


def dequantized_copy(
    model: Any, scheme: Scheme, *, weights_of: Any | None = None, head: Scheme | None = None
) -> Any:
    """The same with what the quantized weights stand for, dense: to read quality off, and to hold kernels against.

    `head`: the scheme of the language-model head; None leaves it as it is.
    """
    dtype = next(model.parameters()).dtype
    source = model if weights_of is None else weights_of
    dense = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    for name, weight in list(projections(source)):
        dense.set_submodule(name, _dequantized(weight, model.get_submodule(name).bias, scheme, dtype, name))
    if head is not None:
        own = model.get_output_embeddings()
        weight = source.get_output_embeddings().weight
        dense.set_output_embeddings(_dequantized(weight, own.bias, head, dtype, "the head"))
    return dense


def _dequantized(
    weight: torch.Tensor,
    bias: nn.Parameter | None,
    scheme: Scheme,
    dtype: torch.dtype,
    name: str,
) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    values = quantize(weight, scheme, name).dequantize().to(dtype)
    linear.weight, linear.bias = nn.Parameter(values, requires_grad=False), bias  # type: ignore[assignment]
    return linear
