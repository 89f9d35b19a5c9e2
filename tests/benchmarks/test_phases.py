"""Claims B1 to B4 on the tiny model: green as they are, red with a fault planted in what each one watches."""

from dataclasses import replace

import pytest

from bench_utils.claim import Outcome
from bench_utils.measure.measurement import Bound, Validity
from bench_utils.measure.roofline import Roofline
from benchmarks.phases import bench_flat_decode, bench_prefill, bench_prompt_token, bench_streaming
from benchmarks.phases.bench_flat_decode import ClaimFlatDecode
from benchmarks.phases.bench_prefill import ClaimPrefill
from benchmarks.phases.bench_prompt_token import ClaimPromptToken
from benchmarks.phases.bench_streaming import ClaimStreaming
from tests.benchmarks.support import lapped, run, timed, verdict
from tests.measure.fakes import FakeGraphs

# --- B1


def test_b1_counts_the_tokens_fed(lab):
    assert run(ClaimPromptToken, lab, 40).counters == {"tokens_fed": 40 + 16, "num_tokens": 17}


def test_b1_sees_a_step_that_forgets_its_token(lab, monkeypatch):
    honest = bench_prompt_token.decode_step

    def forgetful(model, token, cache):
        logits = honest(model, token, cache)
        cache.crop(-1)
        return logits

    monkeypatch.setattr(bench_prompt_token, "decode_step", forgetful)
    with pytest.raises(AssertionError, match="40 tokens in the cache, 56 were fed"):
        run(ClaimPromptToken, lab, 40)


@pytest.mark.parametrize(
    ("prefill_s", "outcome", "ratio"), [(4.0, Outcome.HOLDS, 10.0), (80.0, Outcome.DOES_NOT_HOLD, 0.5)]
)
def test_b1_compares_one_prompt_token_with_one_step(lab, prefill_s, outcome, ratio):
    measured = {(40,): lapped(ClaimPromptToken, (40,), {"prefill": prefill_s, "decode": 1.0}, lab)}
    found = verdict(ClaimPromptToken, lab, measured)
    assert found.outcome is outcome
    assert found.figures["decode_over_prompt_token"].value == pytest.approx(ratio)


# --- B2


@pytest.mark.parametrize("num_prompt", [1, 16])
def test_b2_counts_a_pass_to_the_last_mac(lab, num_prompt):
    assert run(ClaimPrefill, lab, num_prompt).counters["macs"] > 0


def test_b2_sees_logits_that_nobody_reads(lab, monkeypatch):
    honest = bench_prefill.prefill
    monkeypatch.setattr(bench_prefill, "prefill", lambda model, prompt, **_: honest(model, prompt))
    with pytest.raises(AssertionError, match=r"logits \(1, 16, 640\)"):
        run(ClaimPrefill, lab, 16)


def prefilled(lab, token_ms, kind="compute"):
    measured = {}
    for length, ms in token_ms.items():
        share = {"compute": 0.6, "overhead": 0.2, "at the line": 0.5}[kind]
        found = timed(ClaimPrefill, (length,), ms * length / 1e3, lab)
        measured[(length,)] = replace(found, bound=Bound(kind, None, share))
    return measured


@pytest.mark.parametrize(
    ("token_ms", "kind", "outcome", "reason"),
    [
        ({1: 30, 16: 3, 64: 1.5, 256: 1.0}, "compute", Outcome.HOLDS, ""),
        ({1: 30, 16: 3, 64: 1.0, 256: 1.2}, "compute", Outcome.HOLDS, ""),
        ({1: 30, 16: 3, 64: 1.0, 256: 1.2}, "overhead", Outcome.DOES_NOT_HOLD, "the fall ends at 20%"),
        ({1: 30, 16: 3, 64: 1.5, 256: 1.0}, "overhead", Outcome.INCONCLUSIVE, "still falls at the longest"),
        ({1: 30, 16: 3, 64: 1.0, 256: 1.2}, "at the line", Outcome.INCONCLUSIVE, "about half"),
        ({1: 30, 16: 3, 64: 1.001, 256: 1.0}, "overhead", Outcome.DOES_NOT_HOLD, "the fall ends at 20%"),
        ({256: 1.0}, "compute", Outcome.INCONCLUSIVE, "nothing shorter than 256"),
        ({64: 1.0, 256: 1.0}, "compute", Outcome.INCONCLUSIVE, "nothing shorter"),
    ],
)
def test_b2_asks_what_ends_the_fall(lab, token_ms, kind, outcome, reason):
    lab.settings = replace(lab.settings, profile="full")
    found = verdict(ClaimPrefill, lab, prefilled(lab, token_ms, kind))
    assert found.outcome is outcome
    assert reason in found.reason


# --- B3


@pytest.mark.parametrize("arm", ["growing cache", "rows in place"])
def test_b3_steps_as_a_full_pass_does_and_counts_the_bytes_of_each_context(lab, arm):
    counted = run(ClaimFlatDecode, lab, arm).counters
    per_token = 2 * 3 * 2 * 8 * 4
    assert counted["moved_bytes_256"] - counted["moved_bytes_16"] == 240 * per_token


def test_b3_sees_a_step_at_the_wrong_position(lab, monkeypatch):
    honest = bench_flat_decode.ragged_step

    def shifted(model, tokens, cache):
        cache.positions = cache.positions - 1
        return honest(model, tokens, cache)

    monkeypatch.setattr(bench_flat_decode, "ragged_step", shifted)
    with pytest.raises(AssertionError, match="from a full pass, rounding"):
        run(ClaimFlatDecode, lab, "rows in place")


def test_b3_captures_on_cuda_only_and_replays_what_it_captured(lab, monkeypatch):
    assert run(ClaimFlatDecode, lab, "captured graph").validity.reason == "graphs are captured on CUDA only"
    cuda = FakeGraphs()
    monkeypatch.setattr(ClaimFlatDecode, "skip_reason", lambda self, arm: "")
    monkeypatch.setattr(bench_flat_decode.CapturedStep.__init__, "__defaults__", (cuda,))
    assert run(ClaimFlatDecode, lab, "captured graph").validity.is_ok
    assert cuda.log.count("capture") == cuda.log.count("replay") == 3


def stepped(lab, growths, case=ClaimFlatDecode):
    """Arms whose step at 256 tokens takes this many times the one at 16."""
    return {
        (arm,): lapped(case, (arm,), {"16": [1.0] * 7, "256": growth}, lab, 7) for arm, growth in growths.items()
    }


@pytest.mark.parametrize(
    ("growth", "outcome"),
    [
        ([1.0] * 7, Outcome.HOLDS),
        ([1.55] * 7, Outcome.HOLDS),
        ([1.7] * 7, Outcome.DOES_NOT_HOLD),
        ([1.0, 1.5, 2.0, 2.3, 2.8, 3.5, 4.0], Outcome.INCONCLUSIVE),
    ],
)
def test_b3_is_judged_against_the_bytes_and_on_rows_in_place(lab, growth, outcome):
    """The tiny model's cache is large beside its weights: from 16 to 256 tokens the bytes grow by a half."""
    found = verdict(ClaimFlatDecode, lab, stepped(lab, {"growing cache": [9.0] * 7, "rows in place": growth}))
    assert found.outcome is outcome
    assert "9.000x" in found.measured
    assert "1.508x by bytes" in found.predicted


def test_b3_is_judged_on_the_captured_graph_where_there_is_one(lab):
    measured = stepped(lab, {"rows in place": [9.0] * 7, "captured graph": [1.0] * 7})
    assert verdict(ClaimFlatDecode, lab, measured).outcome is Outcome.DOES_NOT_HOLD, "it meant nothing here"
    counted = measured[("rows in place",)].counters
    is_there = replace(measured[("captured graph",)], validity=Validity(), counters=counted)
    assert verdict(ClaimFlatDecode, lab, {**measured, ("captured graph",): is_there}).outcome is Outcome.HOLDS
    broken = replace(is_there, validity=Validity("out-of-memory", "needs 9 GB"))
    assert verdict(ClaimFlatDecode, lab, {**measured, ("captured graph",): broken}).outcome is Outcome.INVALID


# --- B4


def test_b4_streams_the_tokens_that_decoding_alone_would_choose(lab):
    counted = run(ClaimStreaming, lab, 5).counters
    assert counted["tokens_fed"] == 16 + 64 + 256 + 3 * 4


def test_b4_sees_a_stream_of_other_tokens(lab, monkeypatch):
    honest = bench_streaming.ragged_step
    monkeypatch.setattr(
        bench_streaming, "ragged_step", lambda model, tokens, cache: honest(model, tokens, cache).roll(1, dims=-1)
    )
    with pytest.raises(AssertionError, match="logits below the choice"):
        run(ClaimStreaming, lab, 5)


@pytest.mark.parametrize(
    ("first_s", "gap_s", "outcome"),
    [
        ((1, 2, 4), (1, 1, 1), Outcome.HOLDS),
        ((1, 1, 1), (1, 1, 1), Outcome.INCONCLUSIVE),
        ((1, 2, 4), (1, 3, 9), Outcome.DOES_NOT_HOLD),
        ((4, 2, 1), (1, 1, 1), Outcome.DOES_NOT_HOLD),
    ],
)
def test_b4_needs_a_first_token_that_waits_and_gaps_that_do_not(lab, first_s, gap_s, outcome):
    found = verdict(ClaimStreaming, lab, streamed(lab, first_s, gap_s))
    assert found.outcome is outcome


def streamed(lab, first_s, gap_s, prefilled=0.97):
    laps = {}
    for n, first, gap in zip((16, 64, 256), first_s, gap_s, strict=True):
        laps |= {f"first token after {n}": [first] * 7, f"prefill of {n}": [prefilled * first] * 7}
        laps[f"next tokens after {n}"] = [gap] * 28
    return {(5,): lapped(ClaimStreaming, (5,), laps, lab, num_runs=7)}


def test_b4_needs_a_first_token_that_is_prefill(lab):
    found = verdict(ClaimStreaming, lab, streamed(lab, (1, 2, 4), (1, 1, 1), prefilled=0.5))
    assert found.outcome is Outcome.DOES_NOT_HOLD
    assert "50% of it prefill" in found.measured


def test_a_lap_above_the_limits_makes_its_case_invalid(lab, monkeypatch):
    """The whole run may be slow enough while a part of it is impossible."""
    lab.roofline = Roofline({1: 1.0}, {1: 1.0}, {"float32": 1.0})  # bytes and operations a second
    claim = ClaimPromptToken()
    claim._lab = lab
    monkeypatch.setattr("bench_utils.measure.roofline.measure_again", lambda *_: lab.roofline)
    found, _ = lab.measure(claim, (40,))
    assert found.validity.code == "above-roofline"
    assert set(found.laps) == {"prefill", "decode"}
    assert all(lap.bound.share_of_peak > 1 for lap in found.laps.values())
