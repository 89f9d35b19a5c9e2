"""What the harness itself costs: per sample over a bare loop, and in a reported rate over a bare loop's."""

import statistics
import time
from collections.abc import Callable

from bench_utils.measure.clock import Clock, WallClock
from bench_utils.measure.sampler import Budget, sample
from bench_utils.measure.statistics import Interval, median

_LOOP_SAMPLES = 2_000


def nothing() -> None:
    """The cheapest run there is: what is left is the harness."""


def sampled_loop(num_samples: int = _LOOP_SAMPLES) -> None:
    """The sampler around nothing, one run a sample, with a restore that does nothing."""
    budget = Budget(min_samples=num_samples, floor_samples=num_samples, max_samples=num_samples, min_sample_s=0.0)
    sample(nothing, WallClock(), budget, restore=nothing)


def bare_loop(num_samples: int = _LOOP_SAMPLES) -> None:
    """What the same samples need at least: the run, the restore and two readings of the clock."""
    clock = time.perf_counter
    pending = []
    for _ in range(num_samples):
        nothing()
        start = clock()
        nothing()
        pending.append(clock() - start)


def cost_per_sample_s(num_rounds: int = 7, num_samples: int = _LOOP_SAMPLES) -> Interval:
    """Seconds that a sample costs over the bare loop: median and range of rounds in alternation."""
    costs = []
    for _ in range(num_rounds):
        with_sampler = _seconds(lambda: sampled_loop(num_samples))
        without = _seconds(lambda: bare_loop(num_samples))
        costs.append((with_sampler - without) / num_samples)
    return Interval(statistics.median(costs), min(costs), max(costs))


def reported_over_bare(
    run: Callable[[], object], clock: Clock, bare_clock: WallClock, *, num_pairs: int = 31
) -> Interval:
    """The rate that the sampler reports for `run` over that of a bare loop: median of pairs, with its interval.

    1 means that the harness is invisible. Each pair is one sample and one bare run, first one then the other
    in front, so that a drifting machine slows both sides alike.
    """
    budget = Budget(min_samples=1, floor_samples=1, max_samples=1, min_sample_s=0.0)

    def reported_s() -> float:
        return sample(run, clock, budget).samples_s[0]

    def bare_s() -> float:
        mark = bare_clock.begin()
        run()
        return bare_clock.end(mark)

    run()
    ratios = []
    for pair in range(num_pairs):
        if pair % 2:
            bare, reported = bare_s(), reported_s()
        else:
            reported, bare = reported_s(), bare_s()
        ratios.append(bare / reported)
    return median(ratios)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
