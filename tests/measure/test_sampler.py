"""The sampler on a fake clock: what it takes, when it stops, and what it keeps out of a sample."""

import gc

import pytest

from bench_utils.measure import overhead
from bench_utils.measure.clock import CudaEventClock, WallClock
from bench_utils.measure.sampler import Budget, sample
from tests.measure.fakes import FakeCuda, FakeTime


class Work:
    """A run that takes the given seconds in turn (the last for ever), the first being the warm-up's."""

    def __init__(self, time, *seconds):
        self.time, self.seconds, self.num_runs = time, seconds, 0

    def __call__(self):
        self.time.advance(self.seconds[min(self.num_runs, len(self.seconds) - 1)])
        self.num_runs += 1
        return self.num_runs


@pytest.fixture
def time():
    return FakeTime()


def test_samples_are_exactly_what_the_clock_saw_and_the_warm_up_is_not_among_them(time):
    work = Work(time, 9.0, 0.5, 0.25)
    taken = sample(work, WallClock(timer=time), Budget(min_samples=3, min_time_s=0.0))
    assert taken.samples_s == (0.5, 0.25, 0.25)
    assert taken.output == 4


def test_sampling_goes_on_until_there_is_enough_time(time):
    taken = sample(Work(time, 0.1), WallClock(timer=time), Budget(min_samples=3, min_time_s=1.0))
    assert len(taken.samples_s) in (10, 11)  # ten tenths, give or take their rounding


def test_the_floor_is_taken_whatever_it_costs(time):
    taken = sample(Work(time, 60.0), WallClock(timer=time), Budget(floor_samples=3, max_time_s=10.0))
    assert taken.samples_s == (60.0,) * 3


def test_the_most_samples_end_it(time):
    taken = sample(Work(time, 0.01), WallClock(timer=time), Budget(max_samples=20, min_time_s=100.0))
    assert len(taken.samples_s) == 20


def test_a_run_shorter_than_the_smallest_sample_is_repeated_inside_one(time):
    work = Work(time, 0.0001)
    taken = sample(work, WallClock(timer=time), Budget(min_samples=2, min_time_s=0.0, min_sample_s=0.001))
    assert taken.runs_per_sample == 10
    assert taken.samples_s == pytest.approx((0.0001, 0.0001))


def test_restoring_is_outside_the_timer_and_comes_before_every_run(time):
    log = []

    def restore():
        log.append("restore")
        time.advance(5.0)

    def run():
        log.append("run")
        time.advance(0.5)

    taken = sample(
        run, WallClock(timer=time), Budget(min_samples=2, min_time_s=0.0, max_time_s=99), restore=restore
    )
    assert taken.samples_s == (0.5, 0.5)
    assert log == ["restore", "run"] * 3


def test_the_warm_up_lasts_as_long_as_it_was_asked_to(time):
    work = Work(time, 0.3)
    sample(work, WallClock(timer=time), Budget(min_samples=1, floor_samples=1, min_time_s=0.0, warm_time_s=1.0))
    assert work.num_runs == 4 + 1


def test_the_warm_up_is_as_long_for_runs_that_are_short(time):
    work = Work(time, 50e-6)
    budget = Budget(min_samples=1, floor_samples=1, max_samples=10, min_time_s=0.0, warm_time_s=1.0)
    sample(work, WallClock(timer=time), budget)
    assert work.num_runs >= 20_000


def test_the_garbage_collector_is_off_while_sampling_and_on_afterwards(time):
    states = []

    def run():
        states.append(gc.isenabled())
        time.advance(1.0)

    sample(run, WallClock(timer=time), Budget(min_samples=2, min_time_s=0.0))
    assert states[1:] == [False, False]
    assert gc.isenabled()


def test_a_failing_run_turns_the_collector_back_on(time):
    calls = []

    def run():
        calls.append(None)
        time.advance(1.0)
        if len(calls) > 1:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        sample(run, WallClock(timer=time), Budget())
    assert gc.isenabled()


def test_a_device_is_synchronised_before_and_after_each_sample(time):
    order = []
    clock = WallClock(synchronize=lambda: order.append("sync"), timer=time)
    mark = clock.begin()
    order.append("run")
    clock.end(mark)
    assert order == ["sync", "run", "sync"]


def test_cuda_samples_come_from_events_read_once_at_the_end(time):
    cuda = FakeCuda(time)
    clock = CudaEventClock(cuda)
    pending = []
    for seconds in (0.002, 0.003):
        mark = clock.begin()
        time.advance(seconds)
        pending.append(clock.end(mark))
    before = cuda.num_synchronized
    assert clock.read(pending) == pytest.approx([0.002, 0.003])
    assert cuda.num_synchronized == before + 1


def test_the_harness_loops_take_the_same_number_of_samples(monkeypatch):
    """Both sides of the suite's own figure do the same work: one warm run and n samples of nothing."""
    calls = []
    monkeypatch.setattr(overhead, "nothing", lambda: calls.append(None))
    overhead.sampled_loop(50)
    assert len(calls) == 2 * (50 + 1)  # its restore is nothing too, and there is one warm run
    calls.clear()
    overhead.bare_loop(50)
    assert len(calls) == 2 * 50


def test_a_slow_harness_would_show(monkeypatch):
    """Planted fault: a sampler that dawdles doubles every reported sample, and halves the reported rate."""
    time = FakeTime()
    honest = overhead.sample

    def dawdling(run, _clock, budget, **options):
        def slow():
            run()
            time.advance(1.0)

        return honest(slow, WallClock(timer=time), budget, **options)

    run = Work(time, 1.0)
    clocks = (WallClock(timer=time), WallClock(timer=time))
    assert overhead.reported_over_bare(run, *clocks, num_pairs=5).value == pytest.approx(1.0)
    monkeypatch.setattr(overhead, "sample", dawdling)
    assert overhead.reported_over_bare(run, *clocks, num_pairs=5).value == pytest.approx(0.5)
