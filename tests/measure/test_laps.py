"""Laps on a fake clock: named, in order, without the warm-up's, and judged like samples."""

from bench_utils.measure.clock import CudaEventClock, WallClock
from bench_utils.measure.laps import Laps
from bench_utils.measure.sampler import Budget, sample
from tests.measure.fakes import FakeCuda, FakeTime


def test_laps_are_exactly_what_the_clock_saw_by_name_and_in_order():
    time = FakeTime()
    laps = Laps(WallClock(timer=time))
    for name, seconds in (("a", 0.5), ("b", 2.0), ("a", 0.25)):
        time.advance(1.0)  # between laps: nobody's
        with laps.lap(name):
            time.advance(seconds)
    laps.record("latency", 3.0)
    assert laps.read() == {"a": (0.5, 0.25), "b": (2.0,), "latency": (3.0,)}
    assert laps.read() == {}


def test_laps_of_a_device_are_its_events_and_are_waited_for_on_reading_only():
    time = FakeTime()
    cuda = FakeCuda(time)
    laps = Laps(CudaEventClock(cuda))
    with laps.lap("step"):
        time.advance(0.125)
    assert cuda.num_synchronized == 1  # an idle device before it
    assert laps.read() == {"step": (0.125,)}


def test_the_warm_ups_laps_are_none():
    time = FakeTime()
    clock = WallClock(timer=time)
    laps = Laps(clock)
    seconds = iter((9.0, 9.0, 0.5, 0.25, 0.5, 0.25))

    def run():
        for name in ("first", "second"):
            with laps.lap(name):
                time.advance(next(seconds))

    budget = Budget(min_samples=2, min_time_s=0.0)
    assert sample(run, clock, budget, warmed=laps.clear).samples_s == (0.75, 0.75)
    assert laps.read() == {"first": (0.5, 0.5), "second": (0.25, 0.25)}
