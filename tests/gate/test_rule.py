"""The rule on made-up pairs: what it calls slower, when it asks for more, and how often it errs."""

import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from bench_utils.gate.rule import Rule, State, estimate, judge, log_ratio, trial

RULE = Rule()


def play(make_pair, keys, *, most=1000, rule=RULE, min_effect=0.05):
    """A trial on pairs from `make_pair(number, key)`: what it found, and how many pairs it wanted of each case."""
    running = trial(dict.fromkeys(keys, min_effect), rule)
    asked = dict.fromkeys(keys, 0)
    try:
        wanted = next(running)
        for number in range(most):
            pair = {key: make_pair(number, key) for key in wanted}
            for key in wanted:
                asked[key] += 1
            wanted = running.send({key: value for key, value in pair.items() if value is not None})
        running.send(None)
    except StopIteration as ended:
        return ended.value, asked
    raise AssertionError("the trial went on after time was up")


def around(effects, spread, seed=0):
    """Pairs with normal noise around the true log ratio of each case."""
    rng = np.random.default_rng(seed)
    return lambda _number, key: math.log1p(effects[key]) + rng.normal(0, spread)


def test_cases_that_did_not_change_need_seven_pairs_and_no_more():
    found, asked = play(around({"a": 0, "b": 0}, 0.005), ["a", "b"])
    assert {each.state for each in found.values()} == {State.SAME}
    assert asked == {"a": 7, "b": 7}


def test_a_case_twice_as_slow_is_measured_again_and_only_that_one():
    found, asked = play(around({"a": 1.0, "b": 0}, 0.005), ["a", "b"])
    assert found["a"].state is State.SLOWER
    assert found["a"].ratio.low > 1.9
    assert asked == {"a": 14, "b": 7}


def test_what_is_not_slower_when_it_is_measured_again_is_no_regression():
    noise = around({"a": 0}, 0.002)
    found, asked = play(lambda number, key: noise(number, key) + (0.3 if number < 7 else 0), ["a"])
    assert found["a"].state is State.SAME
    assert asked == {"a": 14}


def test_only_undecided_cases_get_more_pairs():
    """A slowdown at the very threshold is what nobody can decide: chance of a wrong verdict at any look 5 %."""
    found, asked = play(around({"quiet": 0, "at the threshold": 0.05}, 0.02, seed=3), ["quiet", "at the threshold"])
    assert found["quiet"].state is State.SAME
    assert found["at the threshold"].state is State.UNDECIDED
    assert asked["at the threshold"] == RULE.looks[-1]
    assert asked["quiet"] < RULE.looks[-1]


def test_a_faster_case_is_an_improvement():
    found, _ = play(around({"a": -0.3}, 0.005), ["a"])
    assert found["a"].state is State.FASTER


def test_time_that_is_up_before_the_first_look_leaves_it_unmeasured():
    found, _ = play(around({"a": 0}, 0.005), ["a"], most=5)
    assert found["a"].state is State.UNMEASURED


def test_time_that_is_up_before_the_confirmation_decides_nothing():
    found, _ = play(around({"a": 1.0}, 0.005), ["a"], most=7)
    assert found["a"].state is State.UNDECIDED
    assert "no time was left to confirm" in found["a"].reason


def test_a_case_that_stops_answering_is_not_asked_again_and_hides_no_other():
    noise = around({"a": 0, "b": 1.0}, 0.005)
    found, asked = play(lambda number, key: None if key == "a" and number == 2 else noise(number, key), ["a", "b"])
    assert found["a"].state is State.UNMEASURED
    assert asked["a"] == 3
    assert found["b"].state is State.SLOWER


def test_samples_that_are_all_alike_are_decided_too():
    found, _ = play(lambda _number, key: 0.0, ["a"])
    assert found["a"].state is State.SAME


def test_a_hundred_cases_that_did_not_change_raise_no_alarm():
    """200 gates over 100 noisy cases, each pair 4 % off. Expected alarms: below one in 10^6 gates."""
    keys = [str(number) for number in range(100)]
    for seed in range(200):
        rng = np.random.default_rng(seed)
        running = trial(dict.fromkeys(keys, 0.05), RULE)
        wanted = next(running)
        for _ in range(7):
            try:
                wanted = running.send(dict(zip(wanted, rng.normal(0, 0.04, len(wanted)), strict=True)))
            except StopIteration:
                break
        try:
            found = running.send(None)
        except StopIteration as ended:
            found = ended.value
        assert State.SLOWER not in {each.state for each in found.values()}


def test_what_a_verdict_says_it_sees_is_seen_nine_times_of_ten():
    """400 gates of seven pairs: the share lies within 4.4 of its standard deviations (1.5 %) of 90 %.

    Chance to fail with a right rule: below 1e-4. `sees` is derived from noise that is estimated, so on average it
    is a little too small or too large; the bounds leave room for that.
    """
    rng = np.random.default_rng(5)
    num_seen, spread = 0, 0.02
    for _ in range(400):
        quiet = {"a": estimate(rng.normal(0, spread, 28))}
        sees = judge(quiet, {"a": 0.05}, RULE.level)["a"].sees
        slowed = {"a": estimate(rng.normal(math.log1p(sees), spread, 28))}
        num_seen += judge(slowed, {"a": 0.05}, RULE.level)["a"].state is State.SLOWER
    assert 0.83 <= num_seen / 400 <= 0.97


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
