"""Claims C1 and C2 on the tiny model: green as they are, red with a fault planted in what each one watches."""

import json
from dataclasses import replace
from math import log2

import pytest

from bench_utils.claim import Outcome
from bench_utils.measure.measurement import Validity
from bench_utils.measure.roofline import Roofline
from benchmarks.batching import bench_batch_curve, bench_schedulers
from benchmarks.batching.bench_batch_curve import ClaimBatchCurve
from benchmarks.batching.bench_schedulers import ClaimSchedulers
from tests.benchmarks.support import lapped, run, timed, verdict

# --- C1


def test_c1_computes_each_sequence_as_alone_and_counts_its_bytes(lab):
    one, eight = (run(ClaimBatchCurve, lab, batch).counters for batch in (1, 8))
    assert eight["moved_bytes"] - one["moved_bytes"] == 7 * 65 * 2 * 3 * 2 * 8 * 4
    assert eight["macs"] == 8 * one["macs"]


@pytest.mark.parametrize(
    ("order", "first"),
    [(lambda n: list(range(n))[::-1], 0), (lambda n: [0, *range(2, n), 1] if n == 8 else list(range(n)), 4)],
)
def test_c1_sees_rows_that_are_mixed_up(lab, monkeypatch, order, first):
    honest = bench_batch_curve.ragged_step
    monkeypatch.setattr(
        bench_batch_curve,
        "ragged_step",
        lambda model, tokens, cache: honest(model, tokens, cache)[order(len(tokens))],
    )
    with pytest.raises(AssertionError, match=f"row {first} of 8 differs"):
        run(ClaimBatchCurve, lab, 8)


def test_c1_leaves_gpu_sizes_to_gpus(lab):
    assert run(ClaimBatchCurve, lab, 128).validity.reason == "on a GPU only"


def curve(lab, seconds):
    lab.settings = replace(lab.settings, profile="full")
    return {(batch,): timed(ClaimBatchCurve, (batch,), s, lab) for batch, s in seconds.items()}


def test_c1_finds_the_knee_and_the_multiples(lab):
    """As the chapter has it: x2.67 to a batch of 16, then almost in proportion."""
    lab.roofline = Roofline({1: 1e9}, {1: 1e9}, {"float32": 1e9})
    seconds = {b: 2.67 ** (log2(min(b, 16)) / 4) * max(b / 16, 1) ** 0.9 for b in (1, 2, 4, 8, 16, 32)}
    found = verdict(ClaimBatchCurve, lab, curve(lab, seconds))
    assert "1 to 16: throughput 5.99x" in found.measured
    assert found.figures["throughput_16_to_32"].value == pytest.approx(2 / 2**0.9, rel=0.01)
    assert "a knee at the roofline's ridge, batch" in found.predicted


@pytest.mark.parametrize(
    ("exponent_after", "outcome", "words"),
    [(0.9, Outcome.HOLDS, "knee at 8.0"), (0.3, Outcome.INCONCLUSIVE, "no knee up to 32")],
)
def test_c1_calls_a_bend_a_knee_only_where_a_larger_batch_stops_paying(lab, exponent_after, outcome, words):
    seconds = {b: min(b, 8) ** 0.1 * max(b / 8, 1) ** exponent_after for b in (1, 2, 4, 8, 16, 32)}
    found = verdict(ClaimBatchCurve, lab, curve(lab, seconds))
    assert found.outcome is outcome
    assert words in found.measured + found.reason


def test_c1_goes_on_without_a_batch_that_did_not_fit(lab):
    measured = curve(lab, {b: min(b, 8) ** 0.1 * max(b / 8, 1) for b in (1, 2, 4, 8, 16, 32)})
    measured[(32,)] = replace(measured[(32,)], validity=Validity("out-of-memory", "needs 9 GB"))
    found = verdict(ClaimBatchCurve, lab, measured)
    assert "1 to 16" in found.measured
    assert "16 to 32" not in found.measured


def test_c1_says_that_a_batch_needs_more_memory_than_there_is(lab, monkeypatch):
    monkeypatch.setattr("bench_utils.devices.free_bytes", lambda device: 1_000)
    claim = ClaimBatchCurve()
    claim._lab = lab
    found, _ = lab.run_once(claim, (2,))
    assert found.validity.code == "out-of-memory"
    assert "a cache of 2 rows of 65 tokens needs" in found.validity.reason


def test_c1_compares_with_the_largest_batch_there_is(lab):
    measured = curve(lab, {b: min(b, 8) ** 0.1 * max(b / 8, 1) for b in (1, 2, 4, 8, 16, 32)})
    measured[(16,)] = replace(measured[(16,)], validity=Validity("above-roofline", "too fast"))
    found = verdict(ClaimBatchCurve, lab, measured)
    assert "1 to 8: throughput" in found.measured
    assert "8 to 32: throughput" in found.measured


def test_c1_does_not_hold_where_batching_buys_nothing(lab):
    found = verdict(ClaimBatchCurve, lab, curve(lab, {b: b**0.95 for b in (1, 2, 4, 8, 16, 32)}))
    assert found.outcome is Outcome.DOES_NOT_HOLD
    assert "saturated from the start: doubling the batch multiplies throughput by 1.04" in found.reason


# --- C2


def test_c2_accounts_for_every_seat_of_every_step(lab):
    found = run(ClaimSchedulers, lab, "all at once")
    counted = found.counters
    assert counted["static_steps"] == 727
    for policy in ("static", "continuous"):
        parts = [counted[f"{policy}_{part}_seat_steps"] for part in ("useful", "padded", "idle")]
        assert sum(parts) == 8 * counted[f"{policy}_steps"]
        spans = json.loads(found.notes[f"timeline_{policy}"])
        assert sum(done - seated for _, _, seated, done, _ in spans) == 1_874


def test_c2_sees_a_seat_step_that_is_lost(lab, monkeypatch):
    honest = bench_schedulers.simulate

    def forgetful(*arguments):
        found = honest(*arguments)
        found.padded_seat_steps -= 1
        return found

    monkeypatch.setattr(bench_schedulers, "simulate", forgetful)
    with pytest.raises(AssertionError, match="static: 5,815 seat-steps of 5,816"):
        run(ClaimSchedulers, lab, "all at once")


def costs(lab, *step_s):
    laps = {str(n): s for n, s in enumerate(step_s, 1)}
    cases = (("all at once",), ("Poisson",))
    return {case: lapped(ClaimSchedulers, case, laps, lab) for case in cases}


def test_c2_holds_where_a_step_costs_the_same_for_one_as_for_eight(lab):
    found = verdict(ClaimSchedulers, lab, costs(lab, *[1.0] * 8))
    assert found.outcome is Outcome.HOLDS
    assert found.figures["all_at_once_throughput"].value == pytest.approx(727 / 292, rel=1e-3)
    assert "727 against 292 steps" in found.measured


def test_c2_does_not_hold_where_joining_made_it_slower(lab, monkeypatch):
    measured = costs(lab, *[1.0] * 8)
    monkeypatch.setattr(bench_schedulers, "POLICIES", bench_schedulers.POLICIES[::-1])
    assert verdict(ClaimSchedulers, lab, measured).outcome is Outcome.DOES_NOT_HOLD


def test_c2_takes_a_trace_and_is_skipped_without_one(lab, tmp_path):
    assert run(ClaimSchedulers, lab, "trace").validity.reason == "no --claims-trace FILE was given"
    path = tmp_path / "mine.csv"
    path.write_text("arrival_s,num_prompt,num_tokens\n0,5,4\n0,5,2\n")
    lab.settings = replace(lab.settings, trace=str(path))
    assert run(ClaimSchedulers, lab, "trace").counters["static_steps"] == 4


def test_c2_is_not_undone_by_a_trace_that_both_can_serve(lab, tmp_path):
    """One request at a time, long after the epoch: the same throughput, and nobody waits."""
    path = tmp_path / "light.csv"
    lines = [f"{1.7e9 + 1000 * i},5,{4 if i % 2 else 40}" for i in range(20)]
    path.write_text("\n".join(["arrival_s,num_prompt,num_tokens", *lines]))
    lab.settings = replace(lab.settings, trace=str(path))
    laps = {str(n): 1.0 for n in range(1, 9)}
    measured = {(case,): lapped(ClaimSchedulers, (case,), laps, lab) for case in ("all at once", "trace")}
    found = verdict(ClaimSchedulers, lab, measured)
    assert found.figures["trace_throughput"].value == pytest.approx(1.0)
    assert found.figures["trace_static_used"].value == pytest.approx(1 / 8)
    assert found.outcome is Outcome.HOLDS, "no worse"
    assert "trace: throughput 1x" in found.measured, "all of it"


def test_c2s_random_arrivals_are_others_in_every_resample(lab):
    found = verdict(
        ClaimSchedulers,
        lab,
        {
            ("all at once",): lapped(ClaimSchedulers, ("all at once",), LAPS, lab),
            ("Poisson",): lapped(ClaimSchedulers, ("Poisson",), LAPS, lab),
        },
    )
    latency = found.figures["Poisson_mean_latency"]
    assert latency.high > 1.05 * latency.low, "costs that do not vary, and latencies that do"
    assert found.outcome is Outcome.HOLDS


LAPS = {str(n): [1.0] * 9 for n in range(1, 9)}
