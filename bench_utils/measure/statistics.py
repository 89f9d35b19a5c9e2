"""Statistics, always derived from raw samples: medians, intervals, ratios."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95
# Below six samples no distribution-free 95 % interval of a median exists: the full range stands for it.
_SMALLEST_SAMPLE = 6
NOISY_IQR = 0.10
_RESAMPLES = 2_000
_SEED = 13


@dataclass(frozen=True)
class Interval:
    """A value and the 95 % interval around it."""

    value: float
    low: float
    high: float

    def format(self, spec: str = ".3g", unit: str = "") -> str:
        """'9.12x [8.80, 9.41]'."""
        return f"{self.value:{spec}}{unit} [{self.low:{spec}}, {self.high:{spec}}]"


def quotient(numerator: Interval, denominator: Interval) -> Interval:
    """The quotient of two positive figures; its interval spans every pair of their ends, so it is wide."""
    return Interval(
        numerator.value / denominator.value,
        numerator.low / denominator.high,
        numerator.high / denominator.low,
    )


def iqr(samples: Sequence[float]) -> float:
    """The interquartile range; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return upper - lower


def is_noisy(samples: Sequence[float]) -> bool:
    """Whether the interquartile range passes 10 % of the median."""
    return bool(samples) and iqr(samples) > NOISY_IQR * statistics.median(samples)


def median(samples: Sequence[float]) -> Interval:
    """The median with its distribution-free interval (order statistics; the range below six samples)."""
    if not samples:
        raise ValueError("no samples")
    middle = statistics.median(samples)
    if len(samples) < _SMALLEST_SAMPLE:
        return Interval(middle, min(samples), max(samples))
    from scipy.stats import quantile_test

    bounds = quantile_test(samples, q=middle, p=0.5).confidence_interval(CONFIDENCE)
    return Interval(middle, float(bounds.low), float(bounds.high))


def mean(values: Sequence[float]) -> Interval:
    """The mean of independent values with its interval (Student's t); all equal, it is that value."""
    from scipy.stats import ttest_1samp

    average = statistics.fmean(values)
    if min(values) == max(values):
        return Interval(average, average, average)
    bounds = ttest_1samp(values, average).confidence_interval(CONFIDENCE)
    return Interval(average, float(bounds.low), float(bounds.high))


def proportion(num: int, out_of: int) -> Interval:
    """A share with its Wilson interval."""
    from scipy.stats import binomtest

    bounds = binomtest(num, out_of).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(num / out_of, float(bounds.low), float(bounds.high))


def flips(one: Sequence[Any], other: Sequence[Any]) -> tuple[int, int]:
    """(places where the first alone is true, places where the second alone is)."""
    pairs = list(zip(one, other, strict=True))
    return sum(bool(a and not b) for a, b in pairs), sum(bool(b and not a) for a, b in pairs)


def mcnemar(num_lost: int, num_won: int) -> float:
    """How probable flips as uneven as these are where neither side is better (exact, two-sided); 1 without any."""
    from scipy.stats import binomtest

    total = num_lost + num_won
    return float(binomtest(num_lost, total).pvalue) if total else 1.0


def over_runs(
    num_runs: int, statistic: Callable[[Sequence[int]], Mapping[str, float]], num_resamples: int = 200
) -> dict[str, Interval]:
    """Figures computed from whole runs, given by their indices, each with its interval over resampled runs.

    For what is derived from several samples of each run together. Below six runs the interval spans the figures
    of the single runs.
    """
    import numpy as np

    values = statistic(range(num_runs))
    if num_runs < _SMALLEST_SAMPLE:
        drawn = [statistic([run]) for run in range(num_runs)]
        shares = (0.0, 1.0)
    else:
        rng = np.random.default_rng(_SEED)
        drawn = [statistic(rng.integers(num_runs, size=num_runs).tolist()) for _ in range(num_resamples)]
        shares = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    intervals = {}
    for name, value in values.items():
        low, high = np.quantile([figures[name] for figures in drawn], shares)
        intervals[name] = Interval(value, float(min(low, value)), float(max(high, value)))
    return intervals


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """The ratio of two medians, samples independent; bootstrap, or the extreme ratios below six samples."""
    if not numerator or not denominator:
        raise ValueError("no samples")
    value = statistics.median(numerator) / statistics.median(denominator)
    if min(len(numerator), len(denominator)) < _SMALLEST_SAMPLE:
        return Interval(value, min(numerator) / max(denominator), max(numerator) / min(denominator))
    import numpy as np
    from scipy.stats import bootstrap

    def ratio_of_medians(a: Any, b: Any, axis: int = -1) -> Any:
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    result = bootstrap(
        (numerator, denominator),
        ratio_of_medians,
        vectorized=True,
        paired=False,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    bounds = result.confidence_interval
    return Interval(value, float(bounds.low), float(bounds.high))
