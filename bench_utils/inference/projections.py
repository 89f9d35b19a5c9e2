"""The projections of a model: the linear maps of its layers, whose weights weight quantization is about."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers.pytorch_utils import Conv1D

from bench_utils.inference.quantizers import Scheme, quantize
from bench_utils.models import facts
from bench_utils.settings import NotApplicableError


class QuantizationError(NamedTuple):
    """Of one projection: |W^ - W| / |W|, and the most that a weight is off in steps of its scale."""

    relative: float
    steps: float


def projections(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, weight (N, K)) of every linear module but the language-model head; GPT-2's Conv1D is one, transposed.

    Raises:
        NotApplicableError: there is none.
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


def linear_maps(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The projections, and every matrix (N, K) that a mixture of experts keeps in a stack."""
    yield from projections(model)
    for name, module in model.named_modules():
        for own, stack in module.named_parameters(recurse=False):
            if stack.dim() == 3 and type(module).__name__.endswith("Experts"):
                # Llama 4's, which alone lack the mark, multiply from the left: x W.
                is_transposed = getattr(module, "is_transposed", True)
                matrices = stack.detach().mT if is_transposed else stack.detach()  # (E, N, K)
                yield from ((f"{name}.{own}.{expert}", matrix) for expert, matrix in enumerate(matrices))


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


@dataclass(frozen=True, eq=False)
class Readers:
    """Projections that read the same activations X (T, K).

    `follows_norm`: the norm before them can take up a scale of its own for each input. `is_scalable`: it, or the
    projection before them, can: v before o where every query head has its own, up before down.
    """

    name: str
    weights: tuple[torch.Tensor, ...]
    activations: torch.Tensor
    follows_norm: bool
    is_scalable: bool


@torch.inference_mode()
def layer_readers(model: Any, ids: torch.Tensor, layer: int) -> list[Readers]:
    """The projections of one layer (from 0) with what they read for prompts (B, T), as (B T, K) in float32.

    Raises:
        UnknownCacheError: naming the config field, where a layer is not q, k, v, o and a gated MLP.
    """
    shape = facts.decoder_shape(model.config)
    has_own_values = shape.num_query_heads == shape.cache.num_kv_heads
    attention, mlp = model.get_decoder().layers[layer].self_attn, model.get_decoder().layers[layer].mlp
    groups = {
        "q, k, v": ((attention.q_proj, attention.k_proj, attention.v_proj), True, True),
        "o": ((attention.o_proj,), False, has_own_values),
        "gate, up": ((mlp.gate_proj, mlp.up_proj), True, True),
        "down": ((mlp.down_proj,), False, True),
    }
    read: dict[str, torch.Tensor] = {}

    def keeping(name: str) -> Any:
        def keep(_linear: Any, arguments: tuple[torch.Tensor, ...]) -> None:
            read[name] = arguments[0].flatten(0, 1).float()

        return keep

    hooks = [linears[0].register_forward_pre_hook(keeping(name)) for name, (linears, *_) in groups.items()]
    try:
        model.get_decoder()(ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [
        Readers(name, tuple(linear.weight.detach().float() for linear in linears), read[name], *scaling)
        for name, (linears, *scaling) in groups.items()
    ]
