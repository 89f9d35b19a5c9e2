"""Exact costs of a run: multiply-accumulates and kernels dispatched."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

_aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
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


@dataclass(frozen=True)
class _Kind:
    """What an operator is: made of others, a kernel or a view, and how its operations are counted."""

    is_composite: bool
    is_kernel: bool
    formula: Callable[..., int] | None


class Dispatched(TorchDispatchMode):
    """Counts the operators that torch dispatches, by its own formulas; its FLOP counter is thrice as slow."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_kernels = 0
        # Operators with products that no formula counts.
        self.unknown: set[str] = set()
        self._num_flops = 0
        missing = (getattr(_aten, name, None) for name in _FORMULAS_MISSING_IN_TORCH)
        added = {operator: _attention_flops for operator in missing if operator is not None}
        self._formulas = FlopCounterMode(display=False, custom_mapping=added).flop_registry
        self._kinds: dict[Any, _Kind] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = self._kind_of(func)
        if kind.is_composite:  # inference mode hands these over whole, and the kernels are what they are made of
            with self:
                return func.decompose(*args, **kwargs)
        output = func(*args, **kwargs)
        self.num_kernels += kind.is_kernel
        if kind.formula is not None:
            self._num_flops += kind.formula(*args, **kwargs, out_val=output)
        return output

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all products.

        Raises:
            ValueError: some cannot be counted.
        """
        if self.unknown:
            raise ValueError(f"no formula for {', '.join(sorted(self.unknown))}: its products would count as none")
        if self._num_flops % 2:
            raise ValueError(f"{self._num_flops} floating-point operations are not whole multiply-accumulates")
        return self._num_flops // 2

    def _kind_of(self, func: Any) -> _Kind:
        formula = self._formulas.get(func.overloadpacket)
        is_composite = formula is None and func.has_kernel_for_dispatch_key(_COMPOSITE)
        if "attention" in func.__name__ and formula is None and not is_composite:
            self.unknown.add(str(func))
        # A view only renames memory; everything else is at least one launch on an accelerator.
        return _Kind(is_composite, not func.is_view, formula)


def count(run: Callable[[], object]) -> Counted:
    """Run once, untimed, and count what torch dispatches.

    Raises:
        ValueError: some products cannot be counted.
    """
    with torch.inference_mode(), Dispatched() as dispatched:
        run()
    return Counted(macs=dispatched.macs, num_kernels=dispatched.num_kernels)
