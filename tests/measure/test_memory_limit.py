"""Limits on memory: the least that is enough, the kernel's own, and CUDA's by a stand-in."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_utils.devices import ShortOfMemoryError
from bench_utils.measure.memory_limit import CudaLimit, least, limit_for, runs_within
from bench_utils.settings import NotApplicableError

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is kept by Linux alone")


class FakeLimit:
    """A machine whose allocations are told."""

    what, spread_bytes = "a fake", 0

    def __init__(self):
        self.most = None
        self.log = []

    def set(self, num_bytes):
        self.most = num_bytes
        self.log.append(num_bytes)

    def lift(self):
        self.most = None
        self.log.append("lifted")

    def take(self, num_bytes):
        if self.most is not None and num_bytes > self.most:
            raise RuntimeError(
                f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {num_bytes} bytes"
            )


def test_a_refusal_is_told_from_a_run_and_the_limit_is_lifted_after_both():
    limit = FakeLimit()
    assert runs_within(limit, 100, lambda: limit.take(100))
    assert not runs_within(limit, 99, lambda: limit.take(100))
    assert limit.log == [100, "lifted", 99, "lifted"]


def test_another_failure_is_its_own_and_lifts_the_limit_too():
    limit = FakeLimit()
    with pytest.raises(ZeroDivisionError):
        runs_within(limit, 100, lambda: 1 // 0)
    assert limit.most is None


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not create a primitive"),
        RuntimeError("can't start new thread"),
    ],
)
def test_whatever_becomes_of_a_refused_allocation_is_a_refusal(error):
    def refused():
        raise error

    assert not runs_within(FakeLimit(), 100, refused)


def test_a_machine_that_is_short_itself_is_not_the_limits_doing():
    def short():
        raise ShortOfMemoryError("5 B wanted, 4 B free")

    with pytest.raises(ShortOfMemoryError):
        runs_within(FakeLimit(), 100, short)


def test_a_limit_that_cannot_be_set_is_lifted_too():
    class Unsettable(FakeLimit):
        def set(self, num_bytes):
            raise ValueError(f"{num_bytes} is beyond the hard limit")

    limit = Unsettable()
    with pytest.raises(ValueError, match="beyond"):
        runs_within(limit, 100, lambda: None)
    assert limit.log == ["lifted"]


@given(edge=st.integers(1, 10**6), step=st.integers(1, 1_000))
def test_the_least_is_found_to_within_a_step(edge, step):
    found = least(lambda num: num >= edge, low=0, high=10**6, step=step)
    assert edge <= found < edge + step


def test_a_high_end_that_is_not_enough_is_an_error():
    with pytest.raises(ValueError, match="1,000 is not enough"):
        least(lambda _num: False, low=0, high=1_000, step=1)


@on_linux
def test_the_kernel_refuses_what_lies_beyond_its_limit():
    limit = limit_for("cpu")
    assert runs_within(limit, 2**40, lambda: bytearray(2**28))
    assert not runs_within(limit, 2**20, lambda: bytearray(2**28))
    assert bytearray(2**28)  # and nothing of it stays


@on_linux
def test_a_hard_limit_is_kept_and_the_users_own_comes_back():
    """In a process of its own: a hard limit cannot be raised again."""
    program = (
        "import resource as r\n"
        "from bench_utils.measure.memory_limit import DataLimit\n"
        "r.setrlimit(r.RLIMIT_DATA, (2**31, 2**32))\n"
        "limit = DataLimit()\n"
        "limit.set(2**40)\n"
        "assert r.getrlimit(r.RLIMIT_DATA) == (2**32, 2**32)\n"
        "limit.lift()\n"
        "assert r.getrlimit(r.RLIMIT_DATA) == (2**31, 2**32)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@on_linux
def test_a_kernel_that_does_not_keep_the_limit_is_a_reason(monkeypatch):
    monkeypatch.setattr("bench_utils.measure.memory_limit.DataLimit", FakeLimit)
    with pytest.raises(NotApplicableError, match="this kernel does not keep RLIMIT_DATA"):
        limit_for("cpu")


@pytest.mark.parametrize(
    ("platform", "device", "words"), [("darwin", "cpu", "darwin keeps no"), ("linux", "mps", "mps")]
)
def test_elsewhere_there_is_a_reason(platform, device, words, monkeypatch):
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(NotApplicableError, match=words):
        limit_for(device)


def test_cudas_limit_is_a_fraction_of_the_device(monkeypatch):
    import torch

    fractions = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: SimpleNamespace(total_memory=8_000))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fractions.append("emptied"))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, index: fractions.append((share, index))
    )
    limit = limit_for("cuda", 1)
    assert isinstance(limit, CudaLimit)
    limit.set(2_000)
    limit.set(9_000)
    limit.lift()
    assert fractions == ["emptied", (0.25, 1), "emptied", (1.0, 1), "emptied", (1.0, 1)]
