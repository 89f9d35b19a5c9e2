"""The kernels that multiply by a quantized weight: the one table of which runs where.

Their names are private to torch or another library's own, so they are wrapped here and nowhere else. Some fail in
silence on some machines: `kernel_choice` offers none that has not passed the test of exact integers there.
"""

import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch.nn import functional

from bench_utils.inference.quantizers import (
    INT4_GROUPS,
    INT8_ROW,
    NF4_BLOCKS,
    NF4_LEVELS,
    PackedTensor,
    Scheme,
    unpack_nibbles,
)

_HALVES = (torch.bfloat16, torch.float16)
_FLOATS = (*_HALVES, torch.float32)


@dataclass(frozen=True)
class Format:
    """How a projection is kept and multiplied. `activations`: they become 8-bit integers too, with one scale for so
    much of them; None: they stay as they are, and only weights are quantized.
    """

    name: str
    scheme: Scheme
    activations: Literal["token", "tensor"] | None = None

    def scheme_for(self, dtype: torch.dtype) -> Scheme:
        """The scheme, its scales kept in the activations' dtype, as weight-only kernels have them."""
        return self.scheme if self.activations else replace(self.scheme, scale_dtype=dtype)


INT8 = Format("int8", INT8_ROW)
INT8_TOKEN = Format("int8 x int8 token", INT8_ROW, activations="token")
INT8_TENSOR = Format("int8 x int8 tensor", INT8_ROW, activations="tensor")
INT4 = Format("int4 group 32", INT4_GROUPS[32])
NF4 = Format("NF4 block 64", NF4_BLOCKS[64])
FORMATS = {each.name: each for each in (INT8, INT8_TOKEN, INT8_TENSOR, INT4, NF4)}


class Kernel(ABC):
    """A weight (N, K) laid out for one kernel: x (M, K) to (M, N) in x's dtype.

    `runs_on`: devices, and the activations' dtypes there. `multiples`: what N and K must divide by. A weight is
    padded with zeros up to them, which changes no product, where `pads`; else such a shape is not taken.
    """

    name: ClassVar[str]
    format: ClassVar[Format]
    runs_on: ClassVar[Mapping[str, tuple[torch.dtype, ...]]]
    multiples: ClassVar[tuple[int, int]] = (1, 1)
    pads: ClassVar[bool] = True
    tensors: tuple[torch.Tensor, ...]

    @abstractmethod
    def __init__(self, packed: PackedTensor) -> None: ...

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """X (M, K) times the transposed weight."""

    @property
    def num_bytes(self) -> int:
        """All that is kept for it."""
        return sum(tensor.nbytes for tensor in self.tensors)


class TorchInt8(Kernel):
    """Int8 weights, one scale a row; activations as they are."""

    name, format = "torch _weight_int8pack_mm", INT8
    # On a CPU float16 and float32 run too, several times slower than the dense product.
    runs_on = {"cpu": (torch.bfloat16,), "cuda": _HALVES, "mps": _HALVES}
    # On a CPU it goes through K in sixteens without looking, beyond the end of memory where they do not fit.
    multiples = 8, 32

    def __init__(self, packed: PackedTensor) -> None:
        self.tensors = packed.codes.view(packed.shape), packed.scales

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch._weight_int8pack_mm(x, *self.tensors)


class TorchIntMm(Kernel):
    """Int8 weights and activations, multiplied as integers: the sums are exact in int32."""

    name, format = "torch _int_mm", INT8_TOKEN
    runs_on = {"cpu": _FLOATS, "cuda": _FLOATS}

    def __init__(self, packed: PackedTensor) -> None:
        self.tensors = packed.codes.view(packed.shape), packed.scales

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        codes, scales = self.tensors
        own, own_scales = quantize_tokens(x)
        return (integer_product(own, codes) * own_scales).mul_(scales).to(x.dtype)


class TorchLinearDynamic(Kernel):
    """The same with one scale and zero point for all tokens at once (fbgemm): the fastest on x86 for one token."""

    name, format = "torch quantized::linear_dynamic", INT8_TENSOR
    runs_on = {"cpu": _FLOATS}

    def __init__(self, packed: PackedTensor) -> None:
        codes, scales = packed.codes.view(packed.shape), packed.scales.double()
        with warnings.catch_warnings():  # torch is to drop its quantized tensors: the self-test would notice
            warnings.simplefilter("ignore", UserWarning)
            zeros = torch.zeros(len(scales), dtype=torch.long)
            weight = torch._make_per_channel_quantized_tensor(codes, scales, zeros, 0)
        self._laid_out = torch.ops.quantized.linear_prepack(weight, None)
        self._shape = packed.shape

    @property
    def num_bytes(self) -> int:
        """By what its layout is made of: a code a weight, and a scale, a zero point and a sum of codes a row."""
        rows, columns = self._shape
        return rows * columns + 3 * 4 * rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.quantized.linear_dynamic(x.float(), self._laid_out)
        return product.to(x.dtype)


class TorchInt4Cpu(Kernel):
    """Int4 weights by groups of 32, in a layout that depends on the CPU: never save it."""

    name, format = "torch _weight_int4pack_mm_for_cpu", INT4
    # As with int8: float16 and float32 are slower than the dense product.
    runs_on, multiples = {"cpu": (torch.bfloat16,)}, (16, 32)

    def __init__(self, packed: PackedTensor) -> None:
        codes = unpack_nibbles(packed.codes, packed.shape[0] * packed.shape[1]).view(packed.shape).int()
        laid_out = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        self.tensors = laid_out, _scales_and_zeros(packed)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        laid_out, scales = self.tensors
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, laid_out, INT4.scheme.size, scales)
        return product


class TorchInt4Cuda(Kernel):
    """The same on CUDA ("tinygemm")."""

    name, format = "torch _weight_int4pack_mm", INT4
    _INNER_K_TILES = 8
    runs_on, multiples = {"cuda": (torch.bfloat16,)}, (8, 16 * _INNER_K_TILES)

    def __init__(self, packed: PackedTensor) -> None:
        rows, columns = packed.shape
        laid_out = torch._convert_weight_to_int4pack(packed.codes.view(rows, columns // 2), self._INNER_K_TILES)
        self.tensors = laid_out, _scales_and_zeros(packed)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        laid_out, scales = self.tensors
        return torch._weight_int4pack_mm(x, laid_out, INT4.scheme.size, scales)


class BitsandbytesNf4(Kernel):
    """NF4 by bitsandbytes: fused on CUDA, and on a CPU with AVX512-BF16 in bfloat16."""

    name, format = "bitsandbytes matmul_4bit", NF4
    # Blocks may not straddle rows, and a padded row would have other blocks.
    runs_on, multiples, pads = {"cpu": (torch.bfloat16,), "cuda": _FLOATS}, (32, NF4_BLOCKS[64].size), False

    def __init__(self, packed: PackedTensor) -> None:
        self._library = bitsandbytes().functional
        weight, self._state = packed.codes.view(-1, 1), self._quant_state(packed)
        if weight.device.type == "cpu" and self._library.has_avx512bf16():
            weight, self._state = self._library._convert_weight_packed_for_cpu(weight, self._state)
        self.tensors = weight, self._state.absmax

    def _quant_state(self, packed: PackedTensor) -> Any:
        return self._library.QuantState(
            absmax=packed.scales.float(),
            shape=torch.Size(packed.shape),
            code=torch.tensor(NF4_LEVELS, device=packed.codes.device),
            blocksize=packed.scheme.size,
            quant_type="nf4",
            dtype=packed.scheme.scale_dtype,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = bitsandbytes().matmul_4bit(x, self.tensors[0], self._state)
        return product


class Dequantizing(Kernel):
    """No kernel: the weight is dequantized at every product. For a shape that the format's kernel cannot take."""

    name = "dequantized product"

    def __init__(self, packed: PackedTensor) -> None:
        self._packed = packed

    @property
    def num_bytes(self) -> int:
        """Those of the packed weight."""
        return self._packed.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._packed.matmul(x)


# By format in the order of preference; which of them run here, and rightly, the self-test says.
KERNELS: tuple[type[Kernel], ...] = (
    *(TorchInt8, TorchIntMm, TorchLinearDynamic),
    *(TorchInt4Cpu, TorchInt4Cuda, BitsandbytesNf4),
)


def integer_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Int8 (M, K) times int8 (N, K) transposed: the exact sums (M, N) in int32, padded as the device wants it."""
    fewest, multiple = int_mm_limits(x.device.type)
    rows, columns, inputs = max(0, fewest - len(x)), -len(weight) % multiple, -x.shape[1] % multiple
    padded = functional.pad(x, (0, inputs, 0, rows)) if rows or inputs else x
    wide = functional.pad(weight, (0, inputs, 0, columns)) if columns or inputs else weight
    return torch._int_mm(padded, wide.t())[: len(x), : len(weight)]


def int_mm_limits(device: str) -> tuple[int, int]:
    """(the fewest rows of activations, what N and K must divide by) for torch to multiply integers."""
    return (17, 8) if device == "cuda" else (1, 1)


def quantize_tokens(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations (M, K) as int8 with one symmetric scale a token: codes (M, K), scales (M, 1) in float32."""
    scales = x.abs().amax(1, keepdim=True).float() / 127
    return (x / scales.clamp(min=torch.finfo(torch.float32).tiny)).round_().to(torch.int8), scales


def _scales_and_zeros(packed: PackedTensor) -> torch.Tensor:
    """(K / g, N, 2): a weight is (code - 8) scale + zero, and the zeros here are all 0."""
    scales = packed.scales.view(packed.shape[0], -1).t()
    return torch.stack([scales, torch.zeros_like(scales)], dim=-1).contiguous()


def bitsandbytes() -> Any:
    """The library, without the hub: where the package `kernels` is there it would fetch and run code from it.

    Raises:
        ImportError: it is not installed.
    """
    if "bitsandbytes" in sys.modules:
        return sys.modules["bitsandbytes"]
    hidden, disabled = sys.modules.get("kernels"), logging.root.manager.disable
    sys.modules["kernels"] = None  # type: ignore[assignment] # an import of it then fails
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import bitsandbytes
    finally:
        logging.disable(disabled)
        del sys.modules["kernels"]
        if hidden is not None:
            sys.modules["kernels"] = hidden
    return bitsandbytes
