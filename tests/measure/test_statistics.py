"""Statistics against values known by hand, and the coverage that an interval promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_utils.measure.statistics import Interval, iqr, is_noisy, median, over_runs, quotient, ratio

positive = st.floats(1e-6, 1e6, allow_nan=False)


def test_a_median_of_few_samples_has_their_range():
    assert median([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0)


def test_a_median_of_many_samples_has_the_order_statistics_interval():
    # n = 10: the 2nd and 9th smallest bound the median with probability 1 - 22/1024.
    assert median([float(n) for n in range(1, 11)]) == Interval(5.5, 2.0, 9.0)


def test_the_medians_interval_covers_as_often_as_it_says():
    """400 draws of 15 samples; a true 95 % falls below 92 % with probability under 0.5 %."""
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(400):
        found = median(list(rng.exponential(size=15)))
        hits += found.low <= np.log(2) <= found.high
    assert hits >= 368


def test_the_ratios_interval_covers_as_often_as_it_says():
    """200 pairs of 12 samples of one distribution; 1 is left out more than 12 % of the time in under 0.1 %."""
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(200):
        found = ratio(list(rng.lognormal(size=12)), list(rng.lognormal(size=12)))
        hits += found.low <= 1.0 <= found.high
    assert hits >= 176


@given(a=st.lists(positive, min_size=1, max_size=5), b=st.lists(positive, min_size=1, max_size=5))
def test_a_ratio_of_few_samples_spans_every_pair(a, b):
    found = ratio(a, b)
    assert all(found.low <= x / y <= found.high for x in a for y in b)
    assert found.low <= found.value <= found.high


def test_a_ratio_follows_a_change_of_unit():
    a, b = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02], [2.0, 2.1, 1.9, 2.05, 1.95, 2.02]
    seconds, milliseconds = ratio(a, b), ratio([x * 1e3 for x in a], b)
    assert milliseconds.value == pytest.approx(seconds.value * 1e3)
    assert milliseconds.low == pytest.approx(seconds.low * 1e3)


def test_no_samples_are_no_figure():
    for function in (lambda: median([]), lambda: ratio([], [1.0])):
        with pytest.raises(ValueError, match="no samples"):
            function()


def test_noise_is_an_iqr_over_a_tenth_of_the_median():
    assert iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0
    assert not is_noisy([1.0, 1.0, 1.05, 1.09])
    assert is_noisy([1.0, 1.0, 1.2, 1.4])
    assert not is_noisy([])


def test_a_quotient_spans_the_ends_of_both():
    assert quotient(Interval(4, 3, 5), Interval(2, 1, 4)) == Interval(2, 0.75, 5)


def test_an_interval_prints_its_unit_once():
    assert Interval(9.123, 8.8, 9.41).format(".2f", "x") == "9.12x [8.80, 9.41]"


def test_figures_over_runs_resample_whole_runs():
    """A ratio of two samples of the same run does not vary, though the samples do."""
    a = [1.0, 5.0, 2.0, 8.0, 3.0, 9.0, 4.0]

    def figures(runs):
        return {
            "paired": sum(2 * a[i] for i in runs) / sum(a[i] for i in runs),
            "mean": sum(a[i] for i in runs) / len(runs),
        }

    found = over_runs(len(a), figures)
    assert found["paired"] == Interval(2.0, 2.0, 2.0)
    assert min(a) < found["mean"].low < found["mean"].value < found["mean"].high < max(a)


def test_figures_over_few_runs_span_the_single_ones():
    assert over_runs(3, lambda runs: {"sum": sum(runs) / len(runs)})["sum"] == Interval(1.0, 0.0, 2.0)
