"""Claims D5 and D6 on the tiny model: green as they are, red with a fault planted in what each one watches."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

from bench_utils.claim import Outcome
from bench_utils.inference import kernels, lean
from bench_utils.inference.kernel_choice import choose
from bench_utils.inference.kernels import FORMATS, INT4, INT8, INT8_TOKEN, NF4
from bench_utils.models import sources
from benchmarks.quantization import bench_matmul, bench_quantized_decode
from benchmarks.quantization.bench_matmul import ClaimMatmul, break_even, lap_of, shapes_of
from benchmarks.quantization.bench_quantized_decode import (
    INTEGER_HEAD,
    LEAN,
    LLAMA_CPP,
    NUM_STEPS,
    PEER,
    TRANSFORMERS,
    ClaimQuantizedDecode,
)
from tests.benchmarks.support import lapped, run, verdict
from tests.kernels_here import BF16, needs, needs_mark

pytestmark = needs_mark(INT8, INT4)

# --- D5

DENSE = ("float32", "bfloat16", "float16")
SHAPES = ("32x32", "16x32", "48x32", "32x48", "640x32")


def products(lab, gains):
    """D5 as measured where each format is so many times as fast as bfloat16, by number of tokens."""
    ran = [*DENSE, *(name for name, form in FORMATS.items() if choose(form, "cpu", BF16).kernel is not None)]
    laps = {
        num: {f"{name} | {shape}": 1 / by.get(name, 1.0) for name in ran for shape in SHAPES}
        for num, by in gains.items()
    }
    return {(num,): lapped(ClaimMatmul, (num,), by_name, lab) for num, by_name in laps.items()}


def test_d5_multiplies_every_shape_in_every_format(lab):
    found = run(ClaimMatmul, lab, 1)
    for form in FORMATS.values():
        ran = choose(form, "cpu", BF16).kernel is not None
        assert (f"bytes, {form.name}" in found.counters) == ran
        assert (f"kernel, {form.name}" in found.notes) == ran
    assert found.counters["macs"] == 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32) + 640 * 32
    assert found.notes[f"kernel, {NF4.name}"] == "dequantized product", "blocks of 64 straddle rows of 32"


def test_d5_holds_where_integers_are_faster_than_every_dense_product(lab):
    found = products(lab, {1: {"float16": 1.5, INT8.name: 2.0, INT4.name: 3.0}})
    judged = verdict(ClaimMatmul, lab, found)
    assert judged.outcome is Outcome.HOLDS
    assert "int8 to 1 tokens or more" in judged.measured
    assert "1 token, against float16, the fastest dense" in judged.measured
    assert judged.figures["gain_int8_1"].value == pytest.approx(2.0 / 1.5)
    assert "dequantized product" in judged.picture


def test_d5_does_not_hold_where_one_is_slower(lab):
    found = products(lab, {1: {"float16": 1.5, INT8.name: 1.4, INT4.name: 3.0}})
    judged = verdict(ClaimMatmul, lab, found)
    assert judged.outcome is Outcome.DOES_NOT_HOLD
    assert judged.reason == "not faster than float16: int8"


def test_d5_judges_the_single_token_and_nothing_else(lab):
    found = products(lab, {32: {INT8.name: 0.5, INT4.name: 0.5}})
    assert verdict(ClaimMatmul, lab, found).outcome is Outcome.INCONCLUSIVE


def test_d5_multiplies_a_row_of_zeros(lab, monkeypatch):
    """As padding makes them, and words that no text has."""
    honest = bench_matmul.shapes_of

    def with_zeros(model):
        groups = honest(model)
        padded = torch.nn.functional.pad(groups[(640, 32)][0], (0, 0, 0, 1))
        return {**groups, (641, 32): [padded]}

    monkeypatch.setattr(bench_matmul, "shapes_of", with_zeros)
    assert run(ClaimMatmul, lab, 1).validity.is_ok


@pytest.mark.parametrize("form", [INT8, INT4], ids=lambda form: form.name)
def test_d5_sees_a_product_beyond_rounding(lab, monkeypatch, form):
    kernel = choose(form, "cpu", BF16).kernel
    honest = kernel.__call__
    monkeypatch.setattr(kernel, "__call__", lambda self, x: honest(self, x) * 1.02)
    with pytest.raises(AssertionError, match=rf"{form.name}, .* the products are 0\.02\d* off"):
        run(ClaimMatmul, lab, 1)


def test_d5_sees_activations_off_by_a_whole_step(lab, monkeypatch):
    needs(INT8_TOKEN, dtype=torch.float32)
    honest = kernels.quantize_tokens

    def off(x):
        codes, scales = honest(x)
        return (codes.int() + 1).clamp(max=127).to(torch.int8), scales

    monkeypatch.setattr(kernels, "quantize_tokens", off)
    monkeypatch.setattr(bench_matmul, "quantize_tokens", off)
    with pytest.raises(AssertionError, match=r"an activation is off by 1\.\d\d steps"):
        run(ClaimMatmul, lab, 32)


def test_d5_says_what_the_device_lacks(lab, monkeypatch):
    monkeypatch.setattr(bench_matmul, "choose", lambda *_: replace(choose(NF4, "mps", BF16)))
    found = run(ClaimMatmul, lab, 1)
    assert "runs on cpu, cuda, not on mps" in found.notes["not run, NF4 block 64"]
    assert [name for name in found.counters if name.startswith("bytes")] == [f"bytes, {name}" for name in DENSE]


def test_d5_takes_as_many_matrices_as_it_may(lab, tiny, monkeypatch):
    assert {shape: len(group) for shape, group in shapes_of(tiny.model).items()} == {
        **{(32, 32): 6, (16, 32): 6, (48, 32): 6, (32, 48): 3, (640, 32): 1}
    }
    monkeypatch.setattr(bench_matmul, "GROUP_BYTES", 2 * 32 * 32 * 8)
    assert {shape: len(group) for shape, group in shapes_of(tiny.model).items()} == {
        **{(32, 32): 2, (16, 32): 4, (48, 32): 1, (32, 48): 1, (640, 32): 1}
    }


def interval(value):
    return replace(bench_matmul.statistics.median([1.0] * 7), value=value)


def test_the_break_even_lies_on_the_line_in_logarithms():
    assert break_even({1: interval(4.0), 4: interval(2.0), 16: interval(0.5)}) == "to 8 tokens"
    assert break_even({1: interval(0.9), 4: interval(0.8)}) == "never"
    assert break_even({1: interval(0.9), 8: interval(2.0), 32: interval(0.5)}) == "to 16 tokens"
    assert break_even({1: interval(4.0), 64: interval(1.5)}) == "to 64 tokens or more"


def test_laps_are_named_by_format_and_shape():
    assert lap_of("int8", (16, 32)) == "int8 | 16x32"


# --- D6


class FakeLlama:
    """llama.cpp that says the token after the one it was fed last, and keeps count of what it holds."""

    def __init__(self, path, *, n_ctx, n_threads, n_threads_batch, n_gpu_layers, logits_all, verbose):
        assert n_threads == n_threads_batch == torch.get_num_threads()
        assert n_gpu_layers == 0
        assert not verbose
        assert not logits_all
        self.n_ctx, self.n_tokens, self.ctx = n_ctx, 0, self

    def n_vocab(self):
        return 640

    def reset(self):
        self.n_tokens = 0

    def eval(self, tokens):
        self.n_tokens += len(tokens)
        assert self.n_tokens <= self.n_ctx, "the context is too short"
        self.logits = np.zeros(640, dtype=np.float32)
        self.logits[(tokens[-1] + 1) % 640] = 1.0


@pytest.fixture
def fake_llama_cpp(monkeypatch, tmp_path):
    """A llama_cpp module, and a GGUF file that the model at hand is said to come from."""
    module = ModuleType("llama_cpp")
    module.Llama = FakeLlama
    module.llama_supports_gpu_offload = lambda: False
    module.llama_get_logits_ith = lambda model, index: np.ctypeslib.as_ctypes(model.logits)
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setattr(bench_quantized_decode.llama_cpp, "is_installed", lambda: True)
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"x" * 1000)
    monkeypatch.setattr(sources, "gguf_of", lambda _model: gguf)
    return module


@pytest.mark.parametrize("path", [TRANSFORMERS, LEAN])
def test_d6_decodes_in_every_format(lab, path):
    found = run(ClaimQuantizedDecode, lab, path)
    sizes = {name.removeprefix("bytes, "): size for name, size in found.counters.items() if "bytes" in name}
    assert sizes["float32"] == 2 * sizes["bfloat16"] == 2 * sizes["float16"]
    assert sizes[INT8.name] < sizes["float32"]
    assert all(len(found.notes[f"tokens, {name}"].split()) == NUM_STEPS for name in sizes)
    assert all(found.counters[f"off, {name}"] <= bench_quantized_decode.MOST_OFF for name in (INT8.name, INT4.name))


def test_d6_runs_llama_cpp_beside_ours(lab, fake_llama_cpp):
    found = run(ClaimQuantizedDecode, lab, PEER)
    assert found.counters[f"bytes, {LLAMA_CPP}"] == 1000
    first, *others = map(int, found.notes[f"tokens, {LLAMA_CPP}"].split())
    assert others == [first + 1, first + 2, first + 3]


def test_d6_says_why_there_is_no_peer(lab, monkeypatch):
    assert run(ClaimQuantizedDecode, lab, PEER).validity.reason.startswith("llama.cpp reads GGUF files")
    monkeypatch.setattr(sources, "gguf_of", lambda _model: sources.Path("model.gguf"))
    monkeypatch.setattr(bench_quantized_decode.llama_cpp, "is_installed", lambda: False)
    assert 'pip install "inference-claims[peers]"' in run(ClaimQuantizedDecode, lab, PEER).validity.reason


def test_d6_says_that_a_peer_on_the_cpu_is_none_for_a_gpu(fake_llama_cpp):
    assert bench_quantized_decode.llama_cpp.lacks("cpu") == ""
    assert "runs on the CPU alone, and the model is on cuda" in bench_quantized_decode.llama_cpp.lacks("cuda")


def test_d6_sees_a_cache_that_is_one_place_off(lab, monkeypatch):
    """Each token is written over the one before it: plausible logits, other ones."""
    honest = lean.LeanDecoder.step
    monkeypatch.setattr(lean.LeanDecoder, "step", lambda self, token, place: honest(self, token, max(0, place - 1)))
    with pytest.raises(AssertionError, match=r"float32: logits are .* times as far off"):
        run(ClaimQuantizedDecode, lab, LEAN)


@pytest.mark.parametrize("name", [INT8.name, INT4.name])
def test_d6_sees_a_quantized_layer_that_is_another(lab, monkeypatch, name):
    honest = bench_quantized_decode.quantized_copy

    def swapped(model, form, **options):
        copied = honest(model, form, **options)
        if form.name == name:
            first, last = copied.model.layers[0].mlp, copied.model.layers[-1].mlp
            first.down_proj, last.down_proj = last.down_proj, first.down_proj
        return copied

    monkeypatch.setattr(bench_quantized_decode, "quantized_copy", swapped)
    with pytest.raises(AssertionError, match=rf"{name}: logits are .* times as far off"):
        run(ClaimQuantizedDecode, lab, TRANSFORMERS)


def test_d6_sees_tokens_that_are_not_those_of_the_logits(lab, monkeypatch):
    honest = ClaimQuantizedDecode.run

    def another(self, path):
        return {name: (tokens + 1) % 640 for name, tokens in honest(self, path).items()}

    monkeypatch.setattr(ClaimQuantizedDecode, "run", another)
    with pytest.raises(AssertionError, match="is not what its own logits choose"):
        run(ClaimQuantizedDecode, lab, LEAN)


def test_d6_judges_what_was_run(lab):
    """One path alone, or formats that have no kernel here: no crash, and no verdict on what is not there."""
    only_lean = {case: each for case, each in decoded(lab, SPEEDS).items() if case == (LEAN,)}
    assert verdict(ClaimQuantizedDecode, lab, only_lean).outcome is Outcome.HOLDS
    dense = decoded(lab, {"float32": 1.0, "bfloat16": 2.0, "float16": 2.0})
    noted = {
        case: replace(each, notes={"not run, int4 group 32": "torch _x runs on cuda, not on mps"})
        for case, each in dense.items()
    }
    judged = verdict(ClaimQuantizedDecode, lab, noted)
    assert judged.outcome is Outcome.NOT_APPLICABLE
    assert judged.reason == "torch _x runs on cuda, not on mps"


def test_d6_compares_with_llama_cpp_what_there_is(lab, fake_llama_cpp):
    found = decoded(lab, SPEEDS, {INT4.name: 1.2, LLAMA_CPP: 1.0})
    judged = verdict(ClaimQuantizedDecode, lab, found)
    assert "lean int4 group 32 takes 1.20x" in judged.measured
    assert INTEGER_HEAD not in judged.measured


SPEEDS = {"float32": 1.0, "bfloat16": 2.0, "float16": 1.5, INT8.name: 4.0, INT4.name: 6.0}
SIZES = {"float32": 400, "bfloat16": 200, "float16": 200, INT8.name: 120, INT4.name: 80}


def decoded(lab, speeds, peer=None, sizes=SIZES):
    """D6 as measured: steps a second by path and format."""
    laps = {path: {name: 1 / speed for name, speed in speeds.items()} for path in (TRANSFORMERS, LEAN)}
    laps |= {PEER: peer} if peer else {}
    found = {(path,): lapped(ClaimQuantizedDecode, (path,), by_name, lab) for path, by_name in laps.items()}
    # The tiny model is nearly all vocabulary, whose quantized head stands beside the embedding.
    sizes = {f"bytes, {name}": size for name, size in sizes.items()}
    return {path: replace(each, counters={**each.counters, **sizes}) for path, each in found.items()}


def test_d6_holds_where_both_are_faster_than_the_dense_half(lab):
    judged = verdict(ClaimQuantizedDecode, lab, decoded(lab, SPEEDS))
    assert judged.outcome is Outcome.HOLDS
    assert judged.figures["lean int4 group 32 over float32"].value == pytest.approx(6.0)
    assert "transformers int8: 4.00x [4.00, 4.00] float32, 2.00x [2.00, 2.00] bfloat16" in judged.measured


def test_d6_does_not_hold_where_one_is_slower(lab):
    judged = verdict(ClaimQuantizedDecode, lab, decoded(lab, SPEEDS | {INT4.name: 1.5}))
    assert judged.outcome is Outcome.DOES_NOT_HOLD


def test_d6_does_not_hold_where_one_is_larger(lab):
    judged = verdict(ClaimQuantizedDecode, lab, decoded(lab, SPEEDS, sizes=SIZES | {INT8.name: 201}))
    assert judged.outcome is Outcome.DOES_NOT_HOLD


def test_d6_gives_the_ratio_to_llama_cpp(lab, fake_llama_cpp):
    found = decoded(lab, SPEEDS, {INT4.name: 1.2, INTEGER_HEAD: 0.9, LLAMA_CPP: 1.0})
    judged = verdict(ClaimQuantizedDecode, lab, found)
    assert "lean int4 group 32, integer head takes 0.90x [0.90, 0.90] llama.cpp's time" in judged.measured
    assert f"{PEER} {LLAMA_CPP}" in judged.picture


def test_a_token_of_a_step_is_fed_to_the_next():
    assert NUM_STEPS > 1
