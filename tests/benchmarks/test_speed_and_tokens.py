"""Claims A1 to A5 on the tiny model: green as they are, red with a fault planted in what each one watches."""

from dataclasses import replace

import pytest

from bench_utils.claim import Outcome
from benchmarks.kv_cache import (
    bench_identical_tokens,
    bench_macs,
    bench_single_head,
    bench_speedup,
    bench_working_memory,
)
from benchmarks.kv_cache.bench_identical_tokens import ClaimIdenticalTokens
from benchmarks.kv_cache.bench_macs import ClaimMacs
from benchmarks.kv_cache.bench_single_head import ClaimSingleHead
from benchmarks.kv_cache.bench_speedup import ClaimSpeedup
from benchmarks.kv_cache.bench_working_memory import ClaimWorkingMemory
from tests.benchmarks.support import run, run_all, timed, verdict

# --- A1


def test_a1_holds_in_every_dtype_and_counts_the_tokens_fed(lab):
    lab.settings = replace(lab.settings, profile="full")
    found = run_all(ClaimIdenticalTokens, lab)
    assert found[("as run",)].validity.code == "not-applicable"  # the lab runs in float32, a case of its own
    assert found[("float64",)].counters["num_equal"] == 12
    assert found[("float32",)].counters["num_equal"] == 24
    assert found[("float64",)].counters["tokens_fed"] == sum(range(40, 52)) + 51
    assert verdict(ClaimIdenticalTokens, lab, found).outcome is Outcome.HOLDS


def test_a1_sees_a_cache_that_lost_a_token(lab, monkeypatch):
    from bench_utils.inference import agreement, decode
    from tests.inference.test_decode import shifted_prefill

    monkeypatch.setattr(agreement, "prefill", shifted_prefill)
    monkeypatch.setattr(decode, "prefill", shifted_prefill)
    with pytest.raises(AssertionError, match="more than rounding"):
        run(ClaimIdenticalTokens, lab, "float32")


def test_a1_sees_tokens_that_differ_without_a_tie(lab, monkeypatch):
    monkeypatch.setattr(
        bench_identical_tokens,
        "greedy_cached",
        lambda model, prompt, n: (prompt[:, :n] + 1) % model.config.vocab_size,
    )
    with pytest.raises(AssertionError, match="without a tie"):
        run(ClaimIdenticalTokens, lab, "float32")


# --- A2


def test_a2_counts_what_each_arm_is_fed(lab):
    assert run(ClaimSpeedup, lab, "cached", 12).counters["tokens_fed"] == 40 + 11
    assert run(ClaimSpeedup, lab, "recompute", 12).counters["tokens_fed"] == sum(range(40, 52))


def test_a2_sees_a_generation_that_stops_early(lab, monkeypatch):
    honest = bench_speedup.greedy_cached
    monkeypatch.setattr(bench_speedup, "greedy_cached", lambda model, prompt, n: honest(model, prompt, n - 1))
    with pytest.raises(AssertionError, match=r"\(1, 11\) tokens, 12 wanted"):
        run(ClaimSpeedup, lab, "cached", 12)


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [((2, 3), Outcome.HOLDS), ((3, 2), Outcome.DOES_NOT_HOLD), ((0.5, 2), Outcome.DOES_NOT_HOLD)],
)
def test_a2_holds_only_where_the_cache_wins_and_wins_more_with_length(lab, ratios, outcome):
    measured = {}
    for length, ratio in zip((8, 48), ratios, strict=True):
        measured["cached", length] = timed(ClaimSpeedup, ("cached", length), 1.0, lab)
        measured["recompute", length] = timed(ClaimSpeedup, ("recompute", length), ratio, lab)
    assert verdict(ClaimSpeedup, lab, measured).outcome is outcome


# --- A3


def test_a3_has_the_chapters_score_bytes_exactly(lab):
    assert run(ClaimSingleHead, lab, "recompute", 4096).counters["score_bytes"] == 67_108_864
    assert run(ClaimSingleHead, lab, "cached", 4096).counters["score_bytes"] == 16_384


def test_a3_sees_a_mask_that_looks_ahead(lab, monkeypatch):
    def unmasked(head):
        scores = (head.x @ head.w_query) @ (head.x @ head.w_key).T / 8
        return (scores.softmax(-1) @ (head.x @ head.w_value))[-2], scores

    monkeypatch.setattr(bench_single_head.attention, "recompute_step", unmasked)
    with pytest.raises(AssertionError, match="the two ways differ"):
        run(ClaimSingleHead, lab, "recompute", 64)


def test_a3_sees_scores_in_another_dtype(lab, monkeypatch):
    honest = bench_single_head.attention.cached_step
    monkeypatch.setattr(
        bench_single_head.attention, "cached_step", lambda head: (honest(head)[0], honest(head)[1].half())
    )
    with pytest.raises(AssertionError, match="128 B of scores, 256 expected"):
        run(ClaimSingleHead, lab, "cached", 64)


# --- A4


@pytest.mark.parametrize("subject", ["one head", "model at hand", "chapter's model"])
def test_a4_is_exact_for_the_head_and_for_both_models(lab, subject):
    counted = run(ClaimMacs, lab, subject, 4).counters
    assert counted["recompute_macs"] / counted["cached_macs"] == pytest.approx(2.5, abs=0.5)


def test_a4_sees_a_cached_step_that_recomputes(lab, monkeypatch):
    monkeypatch.setattr(bench_macs.decode, "greedy_cached", bench_macs.decode.greedy_recompute)
    with pytest.raises(AssertionError, match=r"counted [\d,]+ MACs, the formula has"):
        run(ClaimMacs, lab, "model at hand", 4)


def test_a4_needs_a_ratio_that_grows(lab):
    measured = {case: run(ClaimMacs, lab, *case) for case in ClaimMacs.cases() if case[0] == "one head"}
    assert verdict(ClaimMacs, lab, measured).outcome is Outcome.HOLDS
    shrunk = replace(measured["one head", 48], counters={"cached_macs": 1, "recompute_macs": 1})
    failed = verdict(ClaimMacs, lab, {**measured, ("one head", 48): shrunk})
    assert failed.outcome is Outcome.DOES_NOT_HOLD


# --- A5


def test_a5_counts_every_arm_and_takes_the_logits_apart(lab):
    found = run_all(ClaimWorkingMemory, lab)
    peaks = {arm: found[arm, 64].counters["peak_bytes"] for arm in ClaimWorkingMemory.params[0]}
    assert peaks["recompute, last logits only"] < peaks["recompute"]
    assert verdict(ClaimWorkingMemory, lab, found).measured


def test_a5s_longest_step_is_the_peak_of_the_whole_recomputing_loop(lab):
    """The claim runs only the longest step; here the whole loop is tracked, its ids included."""
    from bench_utils.inference.decode import greedy_recompute
    from bench_utils.measure.tensor_tracker import peak_tensor_bytes
    from bench_utils.models import loading, prompts

    loaded = loading.load(lab.settings)
    whole = peak_tensor_bytes(
        lambda: greedy_recompute(loaded.model, prompts.prompt_ids(loaded, bench_working_memory.NUM_PROMPT), 64)
    )
    step = run(ClaimWorkingMemory, lab, "recompute", 64).counters["peak_bytes"]
    num_ids = bench_working_memory.NUM_PROMPT + 64
    assert step <= whole <= step + 4 * 8 * num_ids  # the prompt, the sequence, and its copy while it grows


def test_a5_sees_a_tracker_that_sees_nothing(lab, monkeypatch):
    monkeypatch.setattr(bench_working_memory, "peak_tensor_bytes", lambda run: 0)
    with pytest.raises(AssertionError, match="less than its logits"):
        run(ClaimWorkingMemory, lab, "recompute", 64)
