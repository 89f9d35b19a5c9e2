"""The projections of a model: the linear maps of its layers, whose weights weight quantization is about."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from transformers.pytorch_utils import Conv1D

from bench_utils.inference.quantizers import Scheme, quantize
from bench_utils.settings import NotApplicableError


class QuantizationError(NamedTuple):
    """Of one projection: |W^ - W| / |W|, and the most that a weight is off in steps of its scale."""

    relative: float
    steps: float


def projections(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, weight (N, K)) of every linear map but the language-model head; GPT-2's Conv1D is one, transposed.

    Raises:
        NotApplicableError: there is none, as in a mixture of experts that stacks its matrices.
    """
    head = model.get_output_embeddings()
    found = False
    for name, module in model.named_modules():
        if module is head:
            continue
        if isinstance(module, torch.nn.Linear):
            found = True
            yield name, module.weight.detach()
        elif isinstance(module, Conv1D):
            found = True
            yield name, module.weight.detach().T
    if not found:
        raise NotApplicableError(f"{type(model).__name__} has no linear projections")


def num_projected(model: Any) -> int:
    """How many weights the projections have."""
    return sum(weight.numel() for _, weight in projections(model))


def projection_errors(model: Any, scheme: Scheme) -> dict[str, QuantizationError]:
    """What a scheme does to every projection, by name.

    Raises:
        UnusableWeightError: naming the projection that is not finite.
    """
    found = {}
    for name, weight in projections(model):
        packed = quantize(weight, scheme, name)
        difference = packed.dequantize() - weight
        relative = float(difference.norm() / weight.norm())
        found[name] = QuantizationError(relative, float(packed.in_steps(difference).abs().max()))
    return found
