"""Exact costs of a run: multiply-accumulates and kernels dispatched."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

_aten = torch.ops.aten
# Fused attention that torch's own registry leaves out: it would count as zero.
_FORMULAS_MISSING_IN_TORCH = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math_for_mps",
)


@dataclass(frozen=True)
class Counted:
    """Multiply-accumulates (matrix products and attention only) and operators that launch a kernel."""

    macs: int
    num_kernels: int


def _attention_flops(query: Any, key: Any, value: Any, *_args: Any, **_kwargs: Any) -> int:
    # 2 (Q K^T) + 2 (P V) per query head, query and key: the full rectangle, masked or not.
    batch, num_heads, num_queries, head_dim = query
    return int(2 * batch * num_heads * num_queries * key[-2] * (head_dim + value[-1]))


class _KernelCounter(TorchDispatchMode):
    """Counts dispatched operators whose outputs own fresh memory or are written in place."""

    def __init__(self, formulas: Mapping[Any, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_kernels = 0
        self._formulas = formulas

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in func.__name__ and func.overloadpacket not in self._formulas:
            raise ValueError(f"no formula for {func}: its products would count as none")
        # A view only renames memory; everything else is at least one launch on an accelerator.
        self.num_kernels += not func.is_view
        return func(*args, **(kwargs or {}))


def count(run: Callable[[], object]) -> Counted:
    """Run once under torch's FLOP counter and a kernel counter (untimed)."""
    missing = (getattr(_aten, name, None) for name in _FORMULAS_MISSING_IN_TORCH)
    mapping = {operator: _attention_flops for operator in missing if operator is not None}
    flops = FlopCounterMode(display=False, custom_mapping=mapping)
    kernels = _KernelCounter(flops.flop_registry)
    # The FLOP counter stands in front: it takes composite operators apart, and the kernels below are real ones.
    with torch.inference_mode(), kernels, flops:
        run()
    total = flops.get_total_flops()
    if total % 2:
        raise ValueError(f"{total} floating-point operations are not whole multiply-accumulates")
    return Counted(macs=total // 2, num_kernels=kernels.num_kernels)
