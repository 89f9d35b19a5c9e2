"""Weight quantization: symmetric and asymmetric integers by tensor, row or group, and NF4; really packed.

A weight is (N, K): N output rows of K inputs. Each territory that shares a scale (the tensor, a row, a group within
a row, a block of the flattened tensor) becomes one row of a matrix (territories, members), and a scheme is a few
lines over that.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.nn import functional

# The 16 levels of NF4: quantiles of a normal distribution, asymmetric so that zero is one of them.
# Source: Dettmers et al., QLoRA (arXiv 2305.14314), as published with its reference implementation.
# fmt: off
NF4_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
    0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)
# fmt: on
# The farthest that a value in [-1, 1] lies from a level: half the widest gap, that of -1 and its neighbour.
NF4_LARGEST_ERROR = (NF4_LEVELS[1] - NF4_LEVELS[0]) / 2
# Double quantization: scales, less their mean, in int8 with one fp32 scale for so many of them.
NESTED_BLOCK = 256

Territory = Literal["tensor", "row", "group", "block"]


class UnusableWeightError(ValueError):
    """A weight that cannot be quantized; the message names the matrix."""


@dataclass(frozen=True)
class Scheme:
    """How weights are quantized. `size`: the members of a group (within a row) or block (of the flat tensor)."""

    name: str
    bits: int
    territory: Territory
    size: int = 0
    is_nf4: bool = False
    is_asymmetric: bool = False
    scale_dtype: torch.dtype = torch.float32
    is_double: bool = False

    @property
    def qmax(self) -> int:
        """The largest symmetric integer: 2^(bits - 1) - 1."""
        return int(2 ** (self.bits - 1) - 1)

    def bits_per_weight(self, shapes: Iterable[tuple[int, int]]) -> float:
        """Of matrices (N, K) as they are packed, their scales, zeros and nested scales too."""
        counts = Counter(shapes)
        num_bytes = sum(num * quantize(torch.zeros(shape), self).num_bytes for shape, num in counts.items())
        return 8 * num_bytes / sum(num * math.prod(shape) for shape, num in counts.items())

    def packed_bytes(self, shape: tuple[int, int]) -> int:
        """Of a weight (N, K): codes of `bits` each, and a scale for every territory (symmetric, not nested)."""
        num = math.prod(shape)
        codes = num if self.bits == 8 else -(-num // 2)
        return codes + self.num_territories(shape) * self.scale_dtype.itemsize

    def num_territories(self, shape: tuple[int, int]) -> int:
        """How many scales a weight (N, K) has."""
        rows, columns = shape
        if self.territory == "tensor":
            return 1
        if self.territory == "row":
            return rows
        if self.territory == "group":
            return rows * math.ceil(columns / self.size)
        return math.ceil(rows * columns / self.size)


INT8_TENSOR = Scheme("int8 tensor", 8, "tensor")
INT8_ROW = Scheme("int8 row", 8, "row")
INT4_TENSOR = Scheme("int4 tensor", 4, "tensor")
INT4_ROW = Scheme("int4 row", 4, "row")
INT4_GROUPS = {size: Scheme(f"int4 group {size}", 4, "group", size) for size in (32, 64, 128)}
INT4_ASYMMETRIC = Scheme("int4 group 128 asymmetric", 4, "group", 128, is_asymmetric=True)
NF4_BLOCKS = {size: Scheme(f"NF4 block {size}", 4, "block", size, is_nf4=True) for size in (64, 128)}
NF4_DOUBLE = replace(NF4_BLOCKS[64], name="NF4 block 64 double", is_double=True)
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        *(INT8_TENSOR, INT8_ROW, INT4_TENSOR, INT4_ROW),
        *reversed(INT4_GROUPS.values()),
        *(INT4_ASYMMETRIC, *NF4_BLOCKS.values(), NF4_DOUBLE),
    )
}


@dataclass(frozen=True, eq=False)
class PackedTensor:
    """A quantized weight (N, K) as it is stored.

    codes: int8 (N K,), or uint8 (ceil(N K / 2),) with two codes a byte, the first in the high half, the tensor
    flattened by rows. scales: one a territory; with double quantization int8, with `scale_scales` and `scale_mean`
    to read them by. zeros: packed like the codes, of asymmetric schemes.
    """

    scheme: Scheme
    shape: tuple[int, int]
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    scale_scales: torch.Tensor | None = None
    scale_mean: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """All that must be kept to read it back."""
        kept = (self.codes, self.scales, self.zeros, self.scale_scales, self.scale_mean)
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over weights."""
        return 8 * self.num_bytes / math.prod(self.shape)

    def read_scales(self) -> torch.Tensor:
        """The scales (territories,) in float32."""
        if self.scale_scales is None or self.scale_mean is None:
            return self.scales.float()
        nested = _blocks(self.scales.float(), NESTED_BLOCK) * self.scale_scales[:, None]
        return nested.flatten()[: self.scales.numel()] + self.scale_mean

    def dequantize(self) -> torch.Tensor:
        """The weight (N, K) that the codes stand for, in float32."""
        codes = unpack_nibbles(self.codes, math.prod(self.shape)) if self.scheme.bits == 4 else self.codes
        members = _territories(codes.view(self.shape), self.scheme)
        scales = self.read_scales()[:, None]
        if self.scheme.is_nf4:
            levels = torch.tensor(NF4_LEVELS, device=codes.device)
            values = levels[members.int()] * scales
        elif self.zeros is not None:
            values = (members.float() - unpack_nibbles(self.zeros, len(scales)).float()[:, None]) * scales
        else:
            offset = 0 if self.scheme.bits == 8 else self.scheme.qmax + 1
            values = (members.float() - offset) * scales
        return _whole(values, self.shape, self.scheme)

    def in_steps(self, difference: torch.Tensor) -> torch.Tensor:
        """A difference of weights (N, K) in steps of each one's own scale: (territories, members)."""
        scales = self.read_scales()
        return _territories(difference, self.scheme) / torch.where(scales == 0, 1.0, scales)[:, None]

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """X (..., K) times the transposed weight: (..., N) in x's dtype, by dequantizing first."""
        return functional.linear(x, self.dequantize().to(x.dtype))


def quantize(weight: torch.Tensor, scheme: Scheme, name: str = "the weight") -> PackedTensor:
    """Quantize a weight (N, K); what is kept of the scales is rounded before the codes are chosen.

    symmetric: scale = max|w| / qmax, code = clamp(round(w / scale), -qmax - 1, qmax). asymmetric: scale =
    (max - min) / 15, zero = round(-min / scale). NF4: scale = max|w|, code = nearest level of w / scale.

    Raises:
        UnusableWeightError: no matrix, or not finite; `name` stands for it.
    """
    if weight.dim() != 2 or not weight.numel():
        raise UnusableWeightError(f"{name} of shape {tuple(weight.shape)} is no matrix")
    members = _territories(weight.float(), scheme)  # (territories, members), padded with zeros
    largest = members.abs().amax(1)
    if not bool(largest.isfinite().all()):
        raise UnusableWeightError(f"{name} holds NaN or infinity: mend or leave it out")
    shape = (weight.shape[0], weight.shape[1])
    if scheme.is_asymmetric:
        return _asymmetric(members, shape, scheme)
    packed = PackedTensor(scheme, shape, members, *_kept_scales(largest, scheme))
    scales = packed.read_scales()
    scaled = members / torch.where(scales == 0, 1.0, scales)[:, None]  # a zero territory keeps its zeros
    if scheme.is_nf4:
        levels = torch.tensor(NF4_LEVELS, device=weight.device)
        codes = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2, out_int32=True)
    else:
        codes = scaled.round_().clamp_(-scheme.qmax - 1, scheme.qmax)
        if scheme.bits == 4:
            codes += scheme.qmax + 1
    flat = _whole(codes, shape, scheme).flatten()
    return replace(packed, codes=flat.to(torch.int8) if scheme.bits == 8 else pack_nibbles(flat.to(torch.uint8)))


def _kept_scales(
    largest: torch.Tensor, scheme: Scheme
) -> tuple[torch.Tensor, None, torch.Tensor | None, torch.Tensor | None]:
    """(scales, no zeros, scale_scales, scale_mean) as they are stored."""
    scales = largest if scheme.is_nf4 else largest / scheme.qmax
    if not scheme.is_double:
        return scales.to(scheme.scale_dtype), None, None, None
    mean = scales.mean()
    centred = _blocks(scales - mean, NESTED_BLOCK)
    scale_scales = centred.abs().amax(1) / 127
    codes = (centred / torch.where(scale_scales == 0, 1.0, scale_scales)[:, None]).round()
    return codes.flatten()[: scales.numel()].to(torch.int8), None, scale_scales, mean


def _asymmetric(members: torch.Tensor, shape: tuple[int, int], scheme: Scheme) -> PackedTensor:
    low, high = members.amin(1).clamp(max=0), members.amax(1).clamp(min=0)  # zero stays exact
    top = 2**scheme.bits - 1
    scales = ((high - low) / top).to(scheme.scale_dtype)
    divisor = torch.where(scales == 0, 1.0, scales.float())
    zeros = (-low / divisor).round().clamp(0, top)
    codes = (members / divisor[:, None]).round_().add_(zeros[:, None]).clamp_(0, top)
    flat = _whole(codes, shape, scheme).flatten()
    return PackedTensor(
        scheme, shape, pack_nibbles(flat.to(torch.uint8)), scales, zeros=pack_nibbles(zeros.to(torch.uint8))
    )


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes (n,) below 16, two to a byte, the first in the high half: (ceil(n / 2),)."""
    if codes.numel() % 2:
        codes = functional.pad(codes, (0, 1))
    return codes[0::2] << 4 | codes[1::2]


def unpack_nibbles(packed: torch.Tensor, num_codes: int) -> torch.Tensor:
    """The uint8 codes (n,) of packed bytes."""
    return torch.stack([packed >> 4, packed & 15], dim=1).flatten()[:num_codes]


def _territories(weight: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """The weight (N, K) as (territories, members); a ragged last group or block is padded with zeros."""
    if scheme.territory == "tensor":
        return weight.reshape(1, -1)
    if scheme.territory == "row":
        return weight
    if scheme.territory == "group":
        return functional.pad(weight, (0, -weight.shape[1] % scheme.size)).reshape(-1, scheme.size)
    return _blocks(weight.flatten(), scheme.size)


def _blocks(flat: torch.Tensor, size: int) -> torch.Tensor:
    return functional.pad(flat, (0, -flat.numel() % size)).view(-1, size)


def _whole(members: torch.Tensor, shape: tuple[int, int], scheme: Scheme) -> torch.Tensor:
    """The way back from `_territories`, without its padding."""
    rows, columns = shape
    if scheme.territory == "group":
        return members.reshape(rows, -1)[:, :columns]
    return members.flatten()[: rows * columns].view(rows, columns)
