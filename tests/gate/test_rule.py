"""The rule's estimates: what seven pairs can say, what a stall spoils, and what a pair is told by."""

import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from bench_utils.gate.rule import Rule, State, estimate, judge, log_ratio

RULE = Rule()


def test_seven_pairs_are_too_few_for_a_bootstrap_and_enough_for_students_t():
    """Why the rule is not a bootstrap over pairs.

    2,000 sets of seven: t's 98 % interval misses the true ratio in 2 % (at most 3.4 %: chance to fail below 1e-4),
    the percentile bootstrap's more than three times as often.
    """
    rng = np.random.default_rng(7)
    missed_by_t = missed_by_bootstrap = 0
    for number in range(2000):
        logs = rng.normal(0, 0.02, 7)
        ratio = judge({"a": estimate(logs)}, {"a": 0.05}, 0.01)["a"].ratio
        missed_by_t += not ratio.low <= 1.0 <= ratio.high
        if number < 500:
            drawn = bootstrap((logs,), np.mean, confidence_level=0.98, method="percentile", rng=rng)
            missed_by_bootstrap += not drawn.confidence_interval.low <= 0 <= drawn.confidence_interval.high
    assert missed_by_t / 2000 <= 0.034
    assert missed_by_bootstrap / 500 >= 0.06


def test_a_pair_is_told_by_the_median_turn_which_a_stall_or_another_speed_does_not_reach():
    base = [[1.0, 1.0, 1.1], [1.0, 1.0, 9.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    head = [[1.1, 1.1, 1.1], [1.1, 1.1, 1.1], [1.1, 1.1, 9.0], [1.1, 1.1, 1.1]]
    assert log_ratio(base, head) == pytest.approx(math.log(1.1))
    changed = [[2.2, 2.2, 2.2], *head[1:]]  # the machine became slower after the base's first turn
    assert log_ratio(base, changed) == pytest.approx(math.log(1.1))
    assert log_ratio([[2.0]], [[3.0]]) == pytest.approx(math.log(1.5))


def test_one_pair_that_a_stall_spoiled_decides_nothing_and_hides_nothing():
    noise = [0.001, -0.002, 0.0, 0.002, -0.001, 0.001]
    stalled = [*noise, 0.6]
    assert judge({"a": estimate(stalled)}, {"a": 0.05}, RULE.level)["a"].state is State.UNDECIDED
    assert judge({"a": estimate([*stalled, *noise[:3]])}, {"a": 0.05}, RULE.level)["a"].state is State.SAME
    slowed = [*(each + 0.2 for each in [*noise, *noise[:3]]), -0.4]
    assert judge({"a": estimate(slowed)}, {"a": 0.05}, RULE.level)["a"].state is State.SLOWER


def test_the_error_of_a_trimmed_mean_is_as_an_independent_implementation_has_it():
    from scipy.stats import mstats

    values = np.random.default_rng(1).normal(0, 1, 10)
    found = estimate(values)
    assert found.mean == pytest.approx(float(mstats.trimmed_mean(values, (0.1, 0.1))))
    assert found.error == pytest.approx(float(mstats.trimmed_stde(values, (0.1, 0.1))))
    assert found.freedom == 7
