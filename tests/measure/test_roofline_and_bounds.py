"""Limits and what they say of a result."""

import pytest
import torch

from bench_utils.measure import roofline
from bench_utils.measure.bounds import Work, classify, judge
from bench_utils.measure.machine import fingerprint
from bench_utils.measure.roofline import Roofline

MIB = 2**20
LIMITS = Roofline(
    read_bytes_per_s={MIB: 200e9, 64 * MIB: 50e9},
    copy_bytes_per_s={MIB: 150e9, 64 * MIB: 60e9},
    peak_flop_per_s={"float32": 1e12},
)


def test_a_working_set_meets_the_limit_of_the_next_smaller_measured_one():
    assert LIMITS.bandwidth(64 * MIB) == LIMITS.bandwidth(1024 * MIB) == 60e9
    assert LIMITS.bandwidth(2 * MIB) == 200e9
    assert LIMITS.bandwidth(MIB - 1) is None
    assert LIMITS.memory_bandwidth == 60e9


def test_the_ridge_is_where_both_limits_meet():
    assert LIMITS.ridge_flop_per_byte("float32") == pytest.approx(1e12 / 60e9)
    assert LIMITS.ridge_flop_per_byte("float16") is None


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (Work(moved_bytes=54 * 10**9, macs=10**9, working_set_bytes=64 * MIB), "memory"),
        (Work(moved_bytes=10**9, macs=4 * 10**11, working_set_bytes=64 * MIB), "compute"),
        (Work(moved_bytes=10**9, macs=10**9, working_set_bytes=64 * MIB), "overhead"),
        (Work(moved_bytes=10**9, working_set_bytes=10), "not assessed"),
    ],
)
def test_one_second_of_work_is_bound_by_what_it_reaches_half_of(work, kind):
    assert classify(work, 1.0, LIMITS).kind == kind
    assert judge(work, 1.0, LIMITS).is_ok


def test_a_result_above_a_limit_is_invalid_and_says_by_how_much():
    too_fast = judge(Work(moved_bytes=66 * 10**9, working_set_bytes=64 * MIB), 1.0, LIMITS)
    assert (too_fast.code, too_fast.reason[:10]) == ("above-roofline", "1.10 times")
    assert "float32 peak" in judge(Work(macs=10**12), 1.0, LIMITS).reason


def test_a_cached_working_set_may_beat_memory():
    assert judge(Work(moved_bytes=190 * 10**9, working_set_bytes=2 * MIB), 1.0, LIMITS).is_ok


def test_the_best_of_two_looks_is_kept():
    other = Roofline({MIB: 190e9, 64 * MIB: 55e9}, {}, {"float32": 2e12, "bfloat16": 4e12})
    best = LIMITS.merged(other)
    assert best.read_bytes_per_s == {MIB: 200e9, 64 * MIB: 55e9}
    assert best.peak_flop_per_s == {"bfloat16": 4e12, "float32": 2e12}


def test_limits_are_cached_per_machine_and_only_get_better(monkeypatch):
    machine = fingerprint()
    looks = iter([LIMITS, Roofline({MIB: 1.0}, {MIB: 1.0}, {"float32": 3e12})])
    monkeypatch.setattr(roofline, "measure", lambda *_arguments: next(looks))
    assert roofline.load_or_measure(machine, "cpu") == LIMITS
    assert roofline.load_or_measure(machine, "cpu") == LIMITS  # from the cache
    assert roofline.measure_again(machine, "cpu") == LIMITS.merged(Roofline({}, {}, {"float32": 3e12}))


@pytest.mark.parametrize("text", ["", "{}", '{"read_bytes_per_s": {"1": -1}}', "[1]"])
def test_a_damaged_cache_is_measured_anew(text):
    machine = fingerprint()
    path = roofline.cache_path(machine, "cpu")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert roofline.read_cache(machine, "cpu") is None


def test_this_machines_own_limits_are_plausible(monkeypatch):
    """A real measurement, small: memory above 0.5 GB/s and products above 0.5 GFLOP/s anywhere."""
    monkeypatch.setattr(roofline, "CPU_WORKING_SETS", (MIB, 16 * MIB))
    monkeypatch.setattr(roofline, "PEAK_DTYPES", ("float32",))
    monkeypatch.setattr(roofline, "_GEMM_SIZES", (256, 512))
    steps = []
    found = roofline.measure("cpu", steps.append)
    assert min(found.read_bytes_per_s.values()) > 5e8
    assert found.peak("float32") > 5e8
    assert len(steps) == 3


def test_the_peak_is_that_of_the_faster_layout(monkeypatch):
    """Where square products have no fast kernel, a batch of rows is the limit, and the other way round."""
    seen = []

    def timed(product, clock, repeats=None):
        is_square = product() is not None and len(seen) < len(roofline._GEMM_SIZES)
        seen.append(is_square)
        return 1.0 if is_square else 1e-6

    monkeypatch.setattr(roofline, "_GEMM_SIZES", (64, 128))
    monkeypatch.setattr(roofline, "_best_s", timed)
    monkeypatch.setattr(roofline, "_GEMM_TIME_S", 2.0)
    assert roofline._peak(torch.float32, torch.device("cpu"), None) == 2 * roofline._GEMM_ROWS * 128**2 / 1e-6
    assert seen == [True, True, False, False]
