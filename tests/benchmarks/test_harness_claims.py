"""The suite's own promises S1 to S4, and S6: judged by the whole interval, and red when they are broken."""

from dataclasses import replace

import pytest

from bench_utils.claim import Outcome, decide
from bench_utils.measure.measurement import Measurement
from bench_utils.models import loading
from benchmarks.harness.bench_import import ClaimImport
from benchmarks.harness.bench_model_ready import ClaimModelReady
from benchmarks.harness.bench_quantizing import STRIDE, ClaimQuantizing
from benchmarks.harness.bench_reported_rate import ClaimReportedRate
from benchmarks.harness.bench_sample_cost import ClaimSampleCost
from tests.benchmarks.support import run, verdict


def timed(claim, case, seconds):
    names = dict(zip(claim.param_names, case, strict=True))
    return Measurement(claim.id, names, tuple(seconds * (1 + 0.001 * i) for i in range(9)))


def outcome_of(claim, lab, **seconds_by_arm):
    instance = claim()
    instance._lab = lab
    cases = claim.cases()
    measured = {case: timed(claim, case, s) for case, s in zip(cases, seconds_by_arm.values(), strict=True)}
    return decide(instance, measured).outcome


@pytest.mark.parametrize(("sampler_s", "outcome"), [(0.003, Outcome.HOLDS), (0.05, Outcome.DOES_NOT_HOLD)])
def test_s1_is_the_cost_over_the_bare_loop_a_sample(lab, sampler_s, outcome):
    assert outcome_of(ClaimSampleCost, lab, sampler=sampler_s, bare=0.001) is outcome


def test_s1_runs_both_loops(lab):
    claim = ClaimSampleCost()
    claim._lab = lab
    for case in claim.cases():
        assert lab.run_once(claim, case)[0].counters == {"num_samples": 2_000}


@pytest.mark.parametrize(
    ("rate", "half_width", "outcome"),
    [(1.0, 0.01, Outcome.HOLDS), (0.99, 0.03, Outcome.INCONCLUSIVE), (0.9, 0.01, Outcome.DOES_NOT_HOLD)],
)
def test_s2_is_within_two_per_cent_or_says_what_it_is(lab, rate, half_width, outcome):
    claim = ClaimReportedRate()
    claim._lab = lab
    counters = {"reported_over_bare": rate, "lowest": rate - half_width, "highest": rate + half_width}
    measured = replace(timed(ClaimReportedRate, (2,), 1.0), samples_s=(), counters=counters)
    assert decide(claim, {(2,): measured}).outcome is outcome


def test_s2_measures_real_pairs(lab):
    claim = ClaimReportedRate()
    claim._lab = lab
    counters = lab.run_once(claim, (2,))[0].counters
    assert counters["lowest"] <= counters["reported_over_bare"] <= counters["highest"]


@pytest.mark.parametrize(("seconds", "outcome"), [(0.3, Outcome.HOLDS), (3.0, Outcome.DOES_NOT_HOLD)])
def test_s3_is_two_seconds(lab, seconds, outcome):
    assert outcome_of(ClaimModelReady, lab, mapped=seconds) is outcome


@pytest.mark.parametrize(("seconds", "outcome"), [(0.05, Outcome.HOLDS), (0.3, Outcome.DOES_NOT_HOLD)])
def test_s4_is_a_fifth_of_a_second(lab, seconds, outcome):
    assert outcome_of(ClaimImport, lab, package=seconds) is outcome


def test_s4_sees_torch_being_imported(lab):
    claim = ClaimImport()
    claim._lab = lab
    claim.check(claim.run("bench_utils"), "bench_utils")
    with pytest.raises(AssertionError, match="loaded torch"):
        claim.check("True\n", "bench_utils")


# --- S6


def quantized(lab, monkeypatch, seconds):
    """S6 on the tiny model, under the default one's name, at so many seconds for its tenth."""
    honest = loading.load_float32

    def renamed(settings):
        loaded = honest(settings)
        return replace(loaded, identity=replace(loaded.identity, name="smollm2"))

    monkeypatch.setattr(loading, "load_float32", renamed)
    found = run(ClaimQuantizing, lab, STRIDE)
    return {(STRIDE,): replace(found, samples_s=tuple(seconds * (1 + 0.001 * i) for i in range(9)))}


@pytest.mark.parametrize(("seconds", "outcome"), [(1.0, Outcome.HOLDS), (5.0, Outcome.DOES_NOT_HOLD)])
def test_s6_scales_by_the_weights_left_out(lab, monkeypatch, seconds, outcome):
    found = quantized(lab, monkeypatch, seconds)
    counted = found[(STRIDE,)].counters
    assert counted["num_projected"] == 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)
    assert counted["num_weights"] == 2 * 32 * 32 + 32 * 48  # the 1st, 11th and 21st
    judged = verdict(ClaimQuantizing, lab, found)
    assert judged.outcome is outcome
    expected = 1.004 * seconds * counted["num_projected"] / counted["num_weights"]
    assert judged.figures["seconds"].value == pytest.approx(expected)


def test_s6_is_about_the_default_model(lab):
    assert "about the default model" in run(ClaimQuantizing, lab, STRIDE).validity.reason
