"""The knee of a batch curve: where a larger batch stops paying, by a piecewise fit with a bootstrap."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_utils.measure.statistics import CONFIDENCE, Interval

_RESAMPLES = 1_000
_SEED = 13
_GRID = 0.05  # in doublings: how finely the knee is told


@dataclass(frozen=True)
class Knee:
    """The batch where the curve bends, and the exponents of time before and after: 0 is free, 1 buys nothing."""

    batch: Interval
    exponent_before: Interval
    exponent_after: Interval


def find_knee(samples_s: Mapping[int, Sequence[float]]) -> Knee:
    """Two straight lines that meet, fitted to the log of the median time over the log of the batch.

    A step bound by memory takes the same time for any batch, exponent 0; one bound by arithmetic takes a time in
    proportion, exponent 1. The interval is of fits to resampled samples (percentile bootstrap): it does not say how
    well two lines fit, and a curve that bends gently has its knee where the sizes measured put it. The knee is
    looked for from the second to the last but one.

    Raises:
        ValueError: fewer than five batch sizes; four always fit.
    """
    import numpy as np

    if len(samples_s) < 5:
        raise ValueError(f"a knee needs five batch sizes at least, and {len(samples_s)} were measured")
    batches = sorted(samples_s)
    rng = np.random.default_rng(_SEED)
    columns = []
    for batch in batches:
        own = np.asarray(samples_s[batch])
        resampled = np.median(rng.choice(own, size=(_RESAMPLES, len(own))), axis=1)
        columns.append(np.concatenate([[np.median(own)], resampled]))  # the samples themselves come first
    fitted = _fit(np.log2(batches), np.log2(np.stack(columns, axis=1)))
    return Knee(*(_interval(column) for column in (2.0 ** fitted[:, 0], fitted[:, 1], fitted[:, 2])))


def _fit(x: Any, curves: Any) -> Any:
    """(knee, slope before, slope after) of each curve (R, n) over x (n,), by least squares over a grid of knees."""
    import numpy as np

    knees = np.arange(x[1], x[-2] + _GRID / 2, _GRID)
    best = np.full(len(curves), np.inf)
    fitted = np.zeros((len(curves), 3))
    for knee in knees:
        # y = c + s1 min(x, k) + s2 max(x - k, 0)
        design = np.stack([np.ones_like(x), np.minimum(x, knee), np.maximum(x - knee, 0)], axis=1)
        solved = curves @ np.linalg.pinv(design).T  # (R, 3)
        error = ((curves - solved @ design.T) ** 2).sum(1)
        better = error < best
        best[better] = error[better]
        fitted[better] = np.column_stack([np.full(better.sum(), knee), solved[better, 1:]])
    return fitted


def _interval(values: Any) -> Interval:
    import numpy as np

    low, high = np.quantile(values[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    # A percentile interval may miss its own estimate where the fit jumps between two bends.
    return Interval(float(values[0]), float(min(low, values[0])), float(max(high, values[0])))
