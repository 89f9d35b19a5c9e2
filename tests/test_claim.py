"""Claim: its cases, its two runners' faces, and the verdict over what was measured."""

import importlib
import inspect
import json

import pytest

from bench_utils.claim import Claim, Outcome, Results, Verdict, decide
from bench_utils.measure.measurement import Measurement, Validity
from bench_utils.verdict import Interval, above, all_of, at_most


class SmallClaim(Claim):
    """A claim that is timed and tracked."""

    id = "T1"
    title = "small"
    tracked = {"bytes_moved": "bytes"}
    params = [["slow", "fast"], [1, 2]]
    param_names = ["arm", "n"]

    def setup(self, arm, n):
        self.ready = True

    def run(self, arm, n):
        assert self.ready
        return n

    def check(self, output, arm, n):
        assert output == n

    def counters(self, output, arm, n):
        return {"bytes_moved": 4 * n}

    def verdict(self, results):
        ratio = results.ratio(("slow", 1), ("fast", 1))
        return Verdict(above(ratio, 1.0), measured=ratio.format())


class CountedClaim(Claim):
    id = "T2"
    title = "counted"
    timed = False

    def run(self):
        return None

    def verdict(self, results):
        return Verdict(Outcome.HOLDS)


def measured(arm, n, *samples, code="ok", reason=""):
    return Measurement("T1", {"arm": arm, "n": n}, samples, validity=Validity(code, reason))


def results(*measurements):
    return {m.key: m for m in measurements}


def test_cases_are_every_combination_the_first_parameter_slowest():
    assert SmallClaim.cases() == [("slow", 1), ("slow", 2), ("fast", 1), ("fast", 2)]
    assert CountedClaim.cases() == [()]


def test_a_timed_claim_has_asvs_faces_and_a_counted_one_none_of_time():
    assert SmallClaim.track_time.type == "time"
    assert SmallClaim.track_time.unit == "seconds"
    assert SmallClaim.track_bytes_moved.unit == "bytes"
    assert not hasattr(CountedClaim, "track_time")
    assert inspect.isabstract(Claim)
    assert not hasattr(Claim, "track_time")


def test_asv_gets_the_samplers_own_samples(lab):
    claim = SmallClaim()
    claim._lab = lab
    claim.setup("fast", 2)
    tracked = claim.track_time("fast", 2)
    assert json.dumps(tracked)
    assert tracked["number"] > 1
    assert len(tracked["samples"]) >= lab.budget.min_samples
    assert claim.track_bytes_moved("fast", 2) == 8


WORKLOAD = """from bench_utils.claim import Claim

NUM_PROMPT = {constant}
LIMIT = {limit}


def shown(results):
    return LIMIT


class ClaimX(Claim):
    '''{words}'''
    id = "X"
    title = "{words}"

    def run(self):  # {words}
        return NUM_PROMPT + {code}

    def verdict(self, results):
        return shown("{words}")
"""


def test_words_keep_a_series_and_a_changed_workload_or_constant_starts_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    base = {"constant": 40, "words": "one", "code": "1", "limit": 2}
    versions = []
    for number, change in enumerate(({}, {"words": "two"}, {"limit": 3}, {"code": "2"}, {"constant": 400})):
        (tmp_path / f"versioned_{number}.py").write_text(WORKLOAD.format(**{**base, **change}))
        versions.append(importlib.import_module(f"versioned_{number}").ClaimX.version)
    assert versions[0] == versions[1] == versions[2]
    assert len(set(versions)) == 3


def test_a_reason_to_skip_ends_the_setup_in_either_runner(lab):
    class Particular(SmallClaim):
        def skip_reason(self, arm, n):
            return "too large" if n == 2 else ""

    claim = Particular()
    claim._lab = lab
    claim.setup("fast", 1)
    with pytest.raises(NotImplementedError, match="too large"):  # what asv skips on
        claim.setup("fast", 2)
    assert lab.run_once(claim, ("fast", 2))[0].validity.reason == "too large"


def test_a_verdict_that_crashes_is_invalid_and_says_so():
    class Crashing(SmallClaim):
        def verdict(self, results):
            raise KeyError("nothing")

    verdict = decide(Crashing(), results(measured("slow", 1, 1.0)))
    assert (verdict.outcome, verdict.reason) == (Outcome.INVALID, "its verdict failed: 'nothing'")


def test_a_verdict_needs_its_cases():
    verdict = decide(SmallClaim(), results(measured("slow", 1, 1.0)))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "case fast-1 was not run")


def test_timing_that_was_off_is_inconclusive():
    verdict = decide(SmallClaim(), results(measured("slow", 1), measured("fast", 1)))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, "slow-1: timing was switched off")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("out-of-memory", Outcome.INVALID),
        ("above-roofline", Outcome.INVALID),
        ("not-applicable", Outcome.NOT_APPLICABLE),
        ("error", Outcome.INVALID),
        ("failed", Outcome.DOES_NOT_HOLD),
    ],
)
def test_a_case_that_does_not_count_is_never_passed_over(code, outcome):
    bad = measured("slow", 1, code=code, reason="because")
    verdict = decide(SmallClaim(), results(bad, measured("fast", 1, 1.0)))
    assert verdict.outcome is outcome
    assert "because" in verdict.reason


def test_a_failed_case_speaks_against_the_claim_even_beside_good_ones():
    good = [measured(arm, 1, *[t] * 6) for arm, t in (("slow", 2.0), ("fast", 1.0))]
    assert decide(SmallClaim(), results(*good)).outcome is Outcome.HOLDS
    bad = measured("slow", 2, code="failed", reason="3 is not 2")
    assert decide(SmallClaim(), results(*good, bad)).outcome is Outcome.DOES_NOT_HOLD


@pytest.mark.parametrize(("slow", "outcome"), [(2.0, Outcome.HOLDS), (0.5, Outcome.DOES_NOT_HOLD)])
def test_a_ratio_on_one_side_of_the_threshold_decides(slow, outcome):
    both = results(measured("slow", 1, *[slow] * 6), measured("fast", 1, *[1.0] * 6))
    assert decide(SmallClaim(), both).outcome is outcome


def test_a_ratio_across_the_threshold_does_not():
    both = results(measured("slow", 1, 0.5, 1.0, 2.0), measured("fast", 1, 0.5, 1.0, 2.0))
    assert decide(SmallClaim(), both).outcome is Outcome.INCONCLUSIVE


def test_parts_of_a_claim_are_joined_strictly():
    holds, fails, unknown = Outcome.HOLDS, Outcome.DOES_NOT_HOLD, Outcome.INCONCLUSIVE
    assert all_of([holds, holds]) is holds
    assert all_of([holds, unknown]) is unknown
    assert all_of([unknown, fails, holds]) is fails


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(1, 2, Outcome.HOLDS), (1, 4, Outcome.INCONCLUSIVE), (4, 5, Outcome.DOES_NOT_HOLD)],
)
def test_a_limit_is_kept_by_the_whole_interval(low, high, outcome):
    assert at_most(Interval(low, low, high), 3) is outcome


def test_usable_results_leave_the_others_out_but_not_all_of_them():
    bad = measured("slow", 1, code="out-of-memory", reason="4 B")
    kept = Results(results(bad, measured("fast", 1, 1.0))).usable()
    assert list(kept) == [("fast", 1)]
    assert decide(SmallClaim(), results(bad)).outcome is Outcome.INVALID
