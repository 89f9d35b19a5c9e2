"""Choosing a kernel: what the table has for a device, held against exact integers before it is used."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from bench_utils.inference.kernels import KERNELS, Dequantizing, Format, Kernel
from bench_utils.inference.quantizers import NF4_LEVELS, PackedTensor, pack_nibbles, quantize
from bench_utils.settings import NotApplicableError

# The self-test's weight (N, K), and the rows of its activations.
_ROWS, _COLUMNS, _NUM_TOKENS = 64, 256, (1, 8, 32, 128)


@dataclass(frozen=True)
class Choice:
    """The kernel for a format on a device, or what it lacks there."""

    kernel: type[Kernel] | None
    lacks: str = ""


@functools.cache
def choose(format: Format, device: str, dtype: torch.dtype) -> Choice:  # noqa: A002 - the field's word
    """The first kernel of the table that is right on a device ('cpu', 'cuda', 'mps') for activations of `dtype`."""
    lacks = []
    for kernel in KERNELS:
        if kernel.format is not format:
            continue
        if fault := _not_offered(kernel, device, dtype) or fault_of(kernel, device, dtype):
            lacks.append(f"{kernel.name} {fault}")
        else:
            return Choice(kernel)
    return Choice(None, "; ".join(lacks) or "no kernel is known")


def lay_out(weight: torch.Tensor, format: Format, dtype: torch.dtype, name: str) -> tuple[Kernel, PackedTensor]:  # noqa: A002
    """Quantize a weight (N, K) for activations of `dtype`: its kernel, and what it stands for.

    It may be padded with zeros: both then have more rows and columns. A shape that the kernel takes neither as it
    is nor padded is multiplied by dequantizing.

    Raises:
        NotApplicableError: the device has no kernel for this format; says what is missing.
        UnusableWeightError: the weight is not finite; `name` stands for it.
    """
    choice, scheme = choose(format, weight.device.type, dtype), format.scheme_for(dtype)
    if choice.kernel is None:
        raise NotApplicableError(f"{format.name}: {choice.lacks}")
    rows, columns = (-size % each for size, each in zip(weight.shape, choice.kernel.multiples, strict=True))
    if (rows or columns) and not choice.kernel.pads:
        packed = quantize(weight, scheme, name)
        return Dequantizing(packed), packed
    packed = quantize(functional.pad(weight, (0, columns, 0, rows)), scheme, name)
    return choice.kernel(packed), packed


def _not_offered(kernel: type[Kernel], device: str, dtype: torch.dtype) -> str:
    if device not in kernel.runs_on:
        return f"runs on {', '.join(kernel.runs_on)}, not on {device}"
    if dtype not in kernel.runs_on[device]:
        names = ", ".join(map(_name, kernel.runs_on[device]))
        return f"multiplies {names} on {device}, not {_name(dtype)}"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def fault_of(kernel: type[Kernel], device: str, dtype: torch.dtype) -> str:
    """What is wrong with a kernel on this device, in words; '' where every product was exactly right.

    Every code occurs, scales are powers of two, and sums are exact in float32 in any order: a product is rounded
    once at most, at the end. Integers are held against int64, NF4's levels, one by one, against themselves.
    """
    try:
        packed, values = _weight(kernel.format, device, dtype)
        multiply = kernel(packed)
        for x in _activations(kernel.format, dtype):
            expected = (x.double() @ values.t()).to(dtype)
            found = multiply(x.to(device))
            if found.shape != expected.shape or found.dtype is not dtype:
                return f"gives {tuple(found.shape)} in {_name(found.dtype)} for {len(x)} tokens"
            if not torch.equal(found.cpu(), expected):
                wrong = float((found.cpu() != expected).float().mean())
                return f"multiplies wrongly here: {wrong:.0%} of the products of {len(x)} tokens"
    except (RuntimeError, ImportError, AttributeError, AssertionError, ValueError) as error:
        return f"does not run here: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    return ""


def _weight(format: Format, device: str, dtype: torch.dtype) -> tuple[PackedTensor, torch.Tensor]:  # noqa: A002
    """A packed weight (64, 256) with every code, and its values in float64."""
    scheme, generator = format.scheme_for(dtype), torch.Generator().manual_seed(0)
    shape = (_ROWS, _COLUMNS)
    num_codes = 2**scheme.bits
    codes = torch.randint(num_codes, shape, generator=generator)
    num_scales = scheme.num_territories(shape)
    scales = 2.0 ** torch.randint(-3, 1, (num_scales,), generator=generator)
    if format.activations is not None:
        scales /= 2**8  # sums of 256 products of bytes, within float16
    spread = scales.double().repeat_interleave(math.prod(shape) // num_scales).view(shape)
    if scheme.is_nf4:
        values = torch.tensor(NF4_LEVELS, dtype=torch.float64)[codes] * spread
    else:
        codes = codes.clamp(min=1)  # -qmax - 1 is no code of a symmetric scheme
        values = (codes - num_codes // 2).double() * spread
    flat = codes.flatten()
    kept = pack_nibbles(flat.to(torch.uint8)) if scheme.bits == 4 else (flat - num_codes // 2).to(torch.int8)
    packed = PackedTensor(scheme, shape, kept.to(device), scales.to(device, scheme.scale_dtype))
    return packed, values


def _activations(format: Format, dtype: torch.dtype) -> Iterator[torch.Tensor]:  # noqa: A002
    """Activations (M, 256) in `dtype`, for each number of tokens M."""
    generator = torch.Generator().manual_seed(1)
    for num_tokens in _NUM_TOKENS:
        if format.activations is not None:
            # Their own codes: their range is that of 8 bits, so that the scale is 1.
            low = -127 if format.activations == "token" else -128
            x = torch.randint(low, 128, (num_tokens, _COLUMNS), generator=generator)
            x[:, 0], x[:, 1] = 127, low
            yield x.to(dtype)
            continue
        # One weight a product: it is read back exactly, wherever the layout has put it.
        x = torch.zeros(num_tokens, _COLUMNS)
        x[torch.arange(num_tokens), torch.randperm(_COLUMNS, generator=generator)[:num_tokens]] = 1
        yield x.to(dtype)
        if not format.scheme.is_nf4:
            # Every fourth input: sums of eighths, exact in float32 in any order, rounded once at the end.
            x = torch.randint(-1, 2, (num_tokens, _COLUMNS), generator=generator) * (
                torch.arange(_COLUMNS) % 4 == 0
            )
            yield x.to(dtype)
    # The stride of a single row means nothing; where it is 0, some kernels leave the result as it was.
    yield x[:1].to(dtype).as_strided((1, _COLUMNS), (0, 1))
