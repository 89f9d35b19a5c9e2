"""Activation outliers: the residual stream at every layer, its maxima per dimension, and what int8 makes of it."""

from collections.abc import Sequence
from typing import Any

import torch

# Bin edges of the histogram of maxima, as the chapter draws it; what lies beyond has a bin of its own.
EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096)


# The chapter looks at layer 16 of 24.
_LOOKED_AT = 2 / 3


def layer_looked_at(num_layers: int) -> int:
    """The layer, counted from 1, that stands for the model: as deep as the chapter's."""
    return round(_LOOKED_AT * num_layers)


@torch.inference_mode()
def residual_stream(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The residual stream after every layer, for one prompt (1, T): (L, T, hidden) in float32 on the CPU."""
    stream: list[torch.Tensor] = []

    def keep(_layer: Any, _arguments: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        stream.append(hidden[0].float().cpu())

    hooks = [layer.register_forward_hook(keep) for layer in model.get_decoder().layers]
    try:
        model.get_decoder()(ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(stream)


def maxima(stream: torch.Tensor) -> torch.Tensor:
    """The largest magnitude that each dimension reaches over the tokens: (..., T, hidden) to (..., hidden)."""
    return stream.abs().amax(-2)


def histogram(values: torch.Tensor, edges: Sequence[int] = EDGES) -> list[int]:
    """How many values lie in each bin from edge to edge, and beyond the last: len(edges) counts."""
    bins = torch.bucketize(values, torch.tensor(edges[1:], dtype=values.dtype), right=True)
    return torch.bincount(bins, minlength=len(edges)).tolist()


def int8_scale(values: torch.Tensor) -> float:
    """One symmetric scale for all of them: max|x| / 127."""
    return float(values.abs().max()) / 127


def num_levels(values: torch.Tensor, scale: float) -> int:
    """How many of int8's 256 levels the values use at this scale."""
    return int((values / scale).round().clamp(-128, 127).unique().numel())


def without_largest(values: torch.Tensor, num_dimensions: int) -> torch.Tensor:
    """(T, hidden) without the dimensions that reach farthest."""
    return values[:, maxima(values).argsort(descending=True)[num_dimensions:]]
