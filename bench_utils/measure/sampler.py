"""The sampler: warm, then collect raw samples until there is enough time and enough of them."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from bench_utils.measure.clock import Clock

Output = TypeVar("Output")


@dataclass(frozen=True)
class Budget:
    """How long to sample one case. `floor_samples` are taken whatever they cost."""

    min_samples: int = 7
    floor_samples: int = 3
    max_samples: int = 200
    min_time_s: float = 0.7
    max_time_s: float = 10.0
    warm_time_s: float = 0.0
    min_sample_s: float = 1e-3


FULL = Budget()
QUICK = Budget(min_samples=5, min_time_s=0.2, max_time_s=2.0, max_samples=50)


@dataclass(frozen=True)
class Sampled(Generic[Output]):
    """Raw samples in seconds per run, how many runs each averages over, and the last run's output."""

    samples_s: tuple[float, ...]
    runs_per_sample: int
    output: Output


def sample(
    run: Callable[[], Output],
    clock: Clock,
    budget: Budget,
    *,
    restore: Callable[[], None] | None = None,
    warmed: Callable[[], None] = lambda: None,
) -> Sampled[Output]:
    """Samples of `run`, warmed with the very shapes that are timed.

    `warmed` is called once, between the warm-up and the first sample. `restore` puts the state back before every
    run, outside the timer. Without it, runs shorter than
    `budget.min_sample_s` are repeated inside one sample, so that the clock's own cost stays out of it.
    The garbage collector is held off while sampling.
    """
    warm_s = _warm(run, clock, budget, restore)
    runs = 1 if restore else max(1, math.ceil(budget.min_sample_s / max(warm_s, 1e-9)))
    pending = []
    warmed()
    with _no_garbage_collection():
        began = clock.now_s()
        while True:
            if restore is not None:
                restore()
            if runs == 1:
                mark = clock.begin()
                output = run()
                pending.append(clock.end(mark))
            else:
                mark = clock.begin()
                for _ in range(runs):
                    output = run()
                pending.append(clock.end(mark))
            if _is_enough(len(pending), clock.now_s() - began, budget):
                break
    samples = tuple(seconds / runs for seconds in clock.read(pending))
    return Sampled(samples, runs, output)


def _is_enough(num_samples: int, elapsed_s: float, budget: Budget) -> bool:
    if num_samples >= budget.max_samples:
        return True
    if elapsed_s >= budget.max_time_s:
        return num_samples >= budget.floor_samples
    return num_samples >= budget.min_samples and elapsed_s >= budget.min_time_s


def _warm(run: Callable[[], object], clock: Clock, budget: Budget, restore: Callable[[], None] | None) -> float:
    """Warm up; the shortest warm run in seconds, for choosing the repetitions."""
    began = clock.now_s()
    shortest = math.inf
    while True:
        if restore is not None:
            restore()
        mark = clock.begin()
        run()
        shortest = min(shortest, *clock.read([clock.end(mark)]))
        # The first run compiles and allocates; a cheap one is worth a second look for the estimate.
        if clock.now_s() - began >= max(budget.warm_time_s, 3 * budget.min_sample_s):
            return shortest


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    # No collection beforehand: with torch loaded it costs a fifth of a second a case and changes no sample.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
