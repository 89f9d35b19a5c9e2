"""Kernels for quantized weights: held against exact integers, chosen by that, padded where that is exact."""

import subprocess
import sys

import pytest
import torch

from bench_utils.inference import kernel_choice, kernels
from bench_utils.inference.kernel_choice import choose, fault_of, lay_out
from bench_utils.inference.kernels import (
    FORMATS,
    INT4,
    INT8,
    INT8_TENSOR,
    INT8_TOKEN,
    KERNELS,
    NF4,
    Dequantizing,
    Kernel,
    TorchInt4Cuda,
    TorchIntMm,
    quantize_tokens,
)
from bench_utils.inference.quantizers import UnusableWeightError, quantize, unpack_nibbles
from bench_utils.settings import NotApplicableError
from tests.kernels_here import BF16, needs


@pytest.fixture(autouse=True)
def fresh_choices():
    """A choice is kept for the process: these tests change what there is to choose."""
    choose.cache_clear()
    yield
    choose.cache_clear()


class Honest(Kernel):
    """Int8 by dequantizing: right by construction, for faults to be planted in."""

    name, format, runs_on = "honest", INT8, {"cpu": (BF16, torch.float32)}

    def __init__(self, packed):
        self.packed, self.tensors = packed, (packed.codes, packed.scales)

    def __call__(self, x):
        return (x.double() @ self.packed.dequantize().double().t()).to(x.dtype)


class Transposed(Honest):
    def __call__(self, x):
        return super().__call__(x.flip(1))


class OneRowUntouched(Honest):
    def __call__(self, x):
        product = super().__call__(x)
        return torch.zeros_like(product) if len(x) == 1 and x.stride(0) == 0 else product


class Saturating(Honest):
    """Bytes without sign times bytes with one, summed by twos in 16 bits: a CPU without VNNI."""

    format = INT8_TENSOR

    def __call__(self, x):
        codes = self.packed.codes.view(self.packed.shape).double()
        pairs = ((x.double() + 128)[:, None] * codes[None]).unflatten(2, (-1, 2)).sum(3)
        sums = pairs.clamp(-32768, 32767).sum(2) - 128 * codes.sum(1)
        return (sums * self.packed.scales.double()).to(x.dtype)


class NextScale(Honest):
    def __call__(self, x):
        return super().__call__(x).roll(1, dims=1)


class WrongDtype(Honest):
    def __call__(self, x):
        return super().__call__(x).float()


class Crashing(Honest):
    def __call__(self, x):
        raise RuntimeError("no kernel image is available\nfor execution")


def test_an_honest_kernel_has_no_fault():
    assert fault_of(Honest, "cpu", BF16) == ""
    assert fault_of(Honest, "cpu", torch.float32) == ""


@pytest.mark.parametrize("faulty", [Transposed, OneRowUntouched, Saturating, NextScale])
def test_a_kernel_that_multiplies_wrongly_is_found_out(faulty):
    assert "multiplies wrongly here" in fault_of(faulty, "cpu", BF16)


def test_a_kernel_of_another_dtype_is_found_out():
    assert "in float32 for 1 tokens" in fault_of(WrongDtype, "cpu", BF16)


def test_a_kernel_that_crashes_says_why_in_a_line():
    assert fault_of(Crashing, "cpu", BF16) == "does not run here: no kernel image is available"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_kernel_of_the_table_is_right_or_does_not_run_here(kernel):
    """A CPU without VNNI multiplies bytes wrongly, and is refused for it."""
    for dtype in kernel.runs_on.get("cpu", ()):
        fault = fault_of(kernel, "cpu", dtype)
        assert not fault or fault.startswith(("does not run here", "multiplies wrongly here")), fault


def test_the_private_names_are_there():
    """What torch drops or renames would else pass for something that this machine lacks."""
    assert all(hasattr(torch, name) for name in ("_int_mm", "_weight_int8pack_mm", "_weight_int4pack_mm"))
    assert all(
        hasattr(torch.ops.aten, name)
        for name in (
            "_convert_weight_to_int4pack_for_cpu",
            "_weight_int4pack_mm_for_cpu",
            "_convert_weight_to_int4pack",
        )
    )
    assert all(hasattr(torch.ops.quantized, name) for name in ("linear_prepack", "linear_dynamic"))


def test_the_first_right_kernel_is_chosen(monkeypatch):
    monkeypatch.setattr(kernel_choice, "KERNELS", (Crashing, NextScale, Honest))
    assert choose(INT8, "cpu", BF16).kernel is Honest


def test_what_is_lacking_is_said_of_each(monkeypatch):
    monkeypatch.setattr(kernel_choice, "KERNELS", (Crashing, TorchIntMm, kernels.TorchInt8))
    choice = choose(INT8, "cpu", torch.float32)
    assert choice.kernel is None
    assert "honest does not run here: no kernel image" in choice.lacks
    assert "torch _weight_int8pack_mm multiplies bfloat16 on cpu, not float32" in choice.lacks
    with pytest.raises(NotApplicableError, match="int8: honest does not run here"):
        lay_out(torch.ones(8, 8), INT8, torch.float32, "w")
    assert choose(INT4, "cpu", BF16).lacks == "no kernel is known"


def test_another_device_is_named():
    assert "runs on cpu, cuda, not on mps" in choose(NF4, "mps", BF16).lacks


def test_a_missing_library_is_a_lack_not_a_crash(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert choose(NF4, "cpu", BF16).kernel is None
    assert "does not run here" in choose(NF4, "cpu", BF16).lacks


def test_importing_bitsandbytes_runs_nothing_of_a_hub(tmp_path):
    """It asks a package `kernels`, where there is one, for code from a hub: here it finds none."""
    (tmp_path / "kernels.py").write_text(
        "def get_kernel(*names, **options):\n    open('fetched', 'w').close()\n    raise OSError('no network')\n"
    )
    script = (
        "import sys; sys.path.insert(0, '.')\n"
        "from bench_utils.inference.kernels import bitsandbytes\n"
        "assert bitsandbytes().matmul_4bit\n"
        "assert 'kernels' not in sys.modules\n"
        "import kernels\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert not (tmp_path / "fetched").exists()
    assert "Failed to load" not in run.stderr


# --- layouts that only CUDA has, over stand-ins that read them as its kernels document


def plain_int4(x, laid_out, size, scales_and_zeros):
    """(q - 8) scale + zero, group by group, from codes two to a byte, the first in the high half."""
    rows, columns = laid_out.shape[0], laid_out.shape[1] * 2
    codes = unpack_nibbles(laid_out.flatten(), rows * columns).view(rows, columns // size, size).double()
    scales, zeros = scales_and_zeros.double().permute(2, 1, 0)  # each (N, K / g)
    return (x.double() @ ((codes - 8) * scales[..., None] + zeros[..., None]).flatten(1).t()).to(x.dtype)


def test_int4_on_cuda_reads_codes_scales_and_zeros_as_documented(monkeypatch):
    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", lambda codes, _tiles: codes)
    monkeypatch.setattr(torch, "_weight_int4pack_mm", plain_int4)
    assert fault_of(TorchInt4Cuda, "cpu", BF16) == ""


def test_int_mm_on_cuda_gets_the_shapes_it_needs(monkeypatch):
    seen = []
    honest = torch._int_mm

    def counting(own, codes):
        seen.append((*own.shape, codes.shape[1]))
        return honest(own, codes)

    monkeypatch.setattr(torch, "_int_mm", counting)
    kernel = TorchIntMm(quantize(torch.randn(12, 10), INT8_TOKEN.scheme))
    x = torch.randn(3, 10)
    alone = kernel(x)
    monkeypatch.setattr(kernels, "int_mm_limits", lambda device: (17, 8))
    assert torch.equal(kernel(x), alone)
    assert seen == [(3, 10, 12), (17, 16, 16)]
    assert kernel(torch.randn(20, 10)).shape == (20, 12)


# --- laying out


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
@pytest.mark.parametrize("shape", [(64, 128), (20, 50), (33, 64), (7, 31)])
def test_any_shape_is_multiplied_as_its_dequantized_weight(form, shape):
    """Padded where that is exact; else dequantized. 8-bit activations may be off by half a step each."""
    needs(form)
    generator = torch.Generator().manual_seed(3)
    weight, x = torch.randn(shape, generator=generator), torch.randn(5, shape[1], generator=generator).to(BF16)
    kernel, packed = lay_out(weight, form, BF16, "w")
    padded = torch.nn.functional.pad(x, (0, packed.shape[1] - shape[1]))
    found = kernel(padded)[:, : shape[0]].double()
    stands_for = quantize(weight, form.scheme_for(BF16)).dequantize().double()
    exact = x.double() @ stands_for.t()
    allowed = 2 * torch.finfo(BF16).eps * (x.double().abs() @ stands_for.abs().t())
    if form.activations:
        step = x.double().abs().amax() * 2 / 255 if form.activations == "tensor" else x.double().abs().amax(1) / 127
        allowed += (step / 2 * 1.02).expand(5)[:, None] * stands_for.abs().sum(1)
    assert bool(((found - exact).abs() <= allowed).all())


def test_a_shape_that_cannot_be_padded_is_dequantized():
    needs(NF4)
    kernel, packed = lay_out(torch.randn(32, 100), NF4, BF16, "w")
    assert isinstance(kernel, Dequantizing)
    assert kernel.name == "dequantized product"
    assert kernel.num_bytes == packed.num_bytes


def test_a_weight_that_is_not_finite_is_named():
    needs(INT8_TOKEN)
    weight = torch.ones(32, 64)
    weight[3, 5] = float("nan")
    with pytest.raises(UnusableWeightError, match="layer 3 down holds NaN"):
        lay_out(weight, INT8_TOKEN, BF16, "layer 3 down")


def test_what_a_kernel_keeps_is_counted():
    needs(INT8, INT8_TENSOR, INT8_TOKEN)
    weight = torch.randn(64, 128)
    sizes = {form.name: lay_out(weight, form, BF16, "w")[0].num_bytes for form in (INT8, INT8_TENSOR, INT8_TOKEN)}
    assert sizes == {INT8.name: 64 * 128 + 64 * 2, INT8_TENSOR.name: 64 * 128 + 12 * 64, INT8_TOKEN.name: 64 * 132}


# --- activations


def test_activations_are_off_by_half_a_step_of_their_tokens_scale():
    x = (
        torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1e-3, 1, 100, 1, 0, 1])[:, None]
    )
    codes, scales = quantize_tokens(x)
    assert codes.dtype is torch.int8
    assert scales.shape == (6, 1)
    assert bool(((codes * scales - x).abs() <= scales / 2 * (1 + 1e-5)).all())
    assert codes[[0, 1, 2, 3, 5]].abs().amax(1).tolist() == [127] * 5
    assert codes[4].count_nonzero() == 0
