"""Memory by named source: real resident memory, and NVML through a stand-in."""

import os
import time

import pytest
import torch

from bench_utils.measure.memory import SOURCES, MemoryProbe, is_out_of_memory
from bench_utils.measure.nvml import Nvml
from bench_utils.measure.rss_watch import RssWatch
from tests.measure.fakes import FakeNvml

SIZE = 256 * 2**20


@pytest.fixture(scope="module")
def watch():
    with RssWatch(os.getpid()) as watching:
        yield watching


def test_resident_memory_is_seen_while_it_lasts(watch):
    def work():
        held = torch.ones(SIZE // 4)
        time.sleep(0.2)  # forty samples long: one is taken even on a machine whose every core is busy
        return float(held[0])

    readings = MemoryProbe("cpu", watch, None).measure(work)
    assert list(readings) == list(SOURCES)
    grown = readings["rss_peak_bytes"].value - readings["rss_before_bytes"].value
    assert grown > SIZE // 2


def test_a_missing_figure_is_none_with_its_reason_never_zero(watch):
    readings = MemoryProbe("cpu", watch, None).measure(lambda: None)
    assert readings["nvml_process_bytes"].value is None
    assert readings["nvml_process_bytes"].reason == "no CUDA device in use"
    assert "no allocator statistics" in readings["allocator_peak_bytes"].reason


def test_on_a_cpu_the_runs_own_tensors_are_a_source_of_their_own(watch):
    restored = []
    readings = MemoryProbe("cpu", watch, None).measure(lambda: torch.ones(1000), lambda: restored.append(None))
    assert readings["tensor_peak_bytes"].value == 4000
    assert len(restored) == 2


def test_nvmls_figures_stand_beside_the_others(watch):
    nvml = Nvml("GPU-1", FakeNvml())
    readings = MemoryProbe("cpu", watch, nvml).measure(lambda: None)
    assert readings["nvml_device_bytes"].value == 9_000
    assert "does not show this process" in readings["nvml_process_bytes"].reason


def test_a_run_that_fails_stops_the_watching(watch):
    def broken():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        MemoryProbe("cpu", watch, None).measure(broken)
    assert MemoryProbe("cpu", watch, None).measure(lambda: None)["rss_peak_bytes"].value > 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError("too much"), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), True),
        (RuntimeError("MPS backend out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_memory_errors_are_told_from_others(error, expected):
    assert is_out_of_memory(error) is expected


def test_the_cpu_allocators_real_error_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
