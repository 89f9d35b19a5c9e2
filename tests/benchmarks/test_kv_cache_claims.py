"""Claims A1 to A9 on the tiny model: green as they are, red with a fault planted in what each one watches."""

from dataclasses import replace

import pytest
import torch

from bench_utils.claim import Outcome, decide
from bench_utils.inference import kv_cache
from benchmarks.kv_cache import (
    bench_cache_bytes,
    bench_grouped_heads,
    bench_identical_tokens,
    bench_long_context,
    bench_macs,
    bench_resident_tokens,
    bench_single_head,
    bench_speedup,
    bench_working_memory,
)
from benchmarks.kv_cache.bench_cache_bytes import ClaimCacheBytes, line_through
from benchmarks.kv_cache.bench_grouped_heads import ClaimGroupedHeads
from benchmarks.kv_cache.bench_identical_tokens import ClaimIdenticalTokens
from benchmarks.kv_cache.bench_long_context import ClaimLongContext
from benchmarks.kv_cache.bench_macs import ClaimMacs
from benchmarks.kv_cache.bench_resident_tokens import ClaimResidentTokens
from benchmarks.kv_cache.bench_single_head import ClaimSingleHead
from benchmarks.kv_cache.bench_speedup import ClaimSpeedup
from benchmarks.kv_cache.bench_working_memory import ClaimWorkingMemory
from tests.conftest import tiny_config


@pytest.fixture(autouse=True)
def small_chapter(monkeypatch):
    """The chapter's model at a size for tests: fewer layers and a small vocabulary, the same cache a layer."""
    from bench_utils.models import loading, shapes

    def small(num_kv_heads=2):
        config = shapes.chapter_config(num_kv_heads)
        config.num_hidden_layers, config.vocab_size = 24, 160
        config.layer_types = config.layer_types[:24]
        config.hidden_size, config.intermediate_size, config.head_dim = 112, 64, 64
        return config

    monkeypatch.setattr(loading, "chapter_config", small)


def run(claim_class, lab, *case):
    """One case as the lab runs it without timing."""
    claim = claim_class()
    claim._lab = lab
    return lab.run_once(claim, case)[0]


def run_all(claim_class, lab):
    return {case: run(claim_class, lab, *case) for case in claim_class.cases()}


def verdict(claim_class, lab, measured):
    claim = claim_class()
    claim._lab = lab
    return decide(claim, measured)


# --- A1


def test_a1_holds_in_every_dtype_and_counts_the_tokens_fed(lab):
    lab.settings = replace(lab.settings, profile="full")
    found = run_all(ClaimIdenticalTokens, lab)
    assert found[("as run",)].validity.code == "not-applicable"  # the lab runs in float32, a case of its own
    assert found[("float64",)].counters["num_equal"] == 12
    assert found[("float32",)].counters["num_equal"] == 48
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


def timed(claim, case, seconds, lab):
    return replace(run(claim, lab, *case), samples_s=tuple(seconds * (1 + 0.001 * i) for i in range(9)))


@pytest.mark.parametrize(
    ("ratios", "outcome"),
    [((2, 3), Outcome.HOLDS), ((3, 2), Outcome.DOES_NOT_HOLD), ((0.5, 2), Outcome.DOES_NOT_HOLD)],
)
def test_a2_holds_only_where_the_cache_wins_and_wins_more_with_length(lab, ratios, outcome):
    measured = {}
    for length, ratio in zip((12, 24), ratios, strict=True):
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


# --- A6


def test_a6_has_the_chapters_tensors_and_bytes_exactly(lab):
    counted = run(ClaimCacheBytes, lab, "chapter's model", "float16", "1 x 295").counters
    assert counted == {"cache_bytes": 3_624_960, "num_tokens": 295}


def test_a6_fits_a_line_without_an_intercept(lab):
    lab.settings = replace(lab.settings, profile="full")
    found = {case: run(ClaimCacheBytes, lab, *case) for case in ClaimCacheBytes.cases() if case[1] == "float32"}
    shown = verdict(ClaimCacheBytes, lab, found)
    assert shown.outcome is Outcome.HOLDS
    assert "24,576 B/token and 0 B besides" in shown.measured
    assert line_through([(10, 130), (20, 230), (30, 330)]) == (10, 30)
    with pytest.raises(AssertionError, match="off the line"):
        line_through([(10, 130), (20, 231), (30, 330)])


def test_a6_sees_a_cache_that_keeps_only_half(lab, monkeypatch):
    honest = bench_cache_bytes.prefill

    def forgetful(model, prompt):
        logits, cache = honest(model, prompt)
        cache.crop(-(prompt.shape[1] // 2))
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
        return logits, cache

    monkeypatch.setattr(bench_cache_bytes, "prefill", forgetful)
    with pytest.raises(AssertionError, match="the formula has"):
        run(ClaimCacheBytes, lab, "model at hand", "float32", "2 x 16")


def test_a6_skips_a_model_whose_cache_is_not_understood_by_its_field(lab, tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    shape = tiny_config().to_dict()
    kept = {k: shape[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    config = MistralConfig(**kept, num_attention_heads=4, num_key_value_heads=2, sliding_window=16)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    lab.settings = replace(lab.settings, model=str(tmp_path))
    found = run(ClaimCacheBytes, lab, "model at hand", "float32", "2 x 16")
    assert (found.validity.code, found.validity.reason) == ("not-applicable", "config field sliding_window=16")


# --- A7


def test_a7_is_768_mebibytes_three_ways(lab):
    found = run_all(ClaimResidentTokens, lab)
    assert verdict(ClaimResidentTokens, lab, found).outcome is Outcome.HOLDS
    assert all(f.counters["cache_bytes"] * 65_536 == f.counters["num_tokens"] * 768 * 2**20 for f in found.values())


def test_a7_is_scaled_down_where_memory_is_short_and_says_so(lab, monkeypatch):
    monkeypatch.setattr(bench_resident_tokens, "free_bytes", lambda device: 100 * 2**20)
    found = run(ClaimResidentTokens, lab, "64 x 1024")
    assert found.notes["scale"] == "1/16 of the tokens: memory is short"
    assert found.counters["cache_bytes"] == 48 * 2**20


def test_a7_without_any_memory_means_nothing(lab, monkeypatch):
    monkeypatch.setattr(bench_resident_tokens, "free_bytes", lambda device: 1_000)
    assert run(ClaimResidentTokens, lab, "128 x 512").validity.code == "not-applicable"


def test_a7_sees_a_cache_that_depends_on_the_users(lab, monkeypatch):
    honest = bench_resident_tokens.filled_cache

    def padded(config, *, batch, num_tokens, **rest):
        return honest(config, batch=batch, num_tokens=num_tokens + 1, **rest)

    monkeypatch.setattr(bench_resident_tokens, "filled_cache", padded)
    monkeypatch.setattr(bench_resident_tokens, "free_bytes", lambda device: 100 * 2**20)
    with pytest.raises(AssertionError, match="expected"):
        run(ClaimResidentTokens, lab, "128 x 512")


# --- A8


def test_a8_divides_the_cache_by_7_and_by_14(lab):
    found = run_all(ClaimGroupedHeads, lab)
    per_token = [found[(heads,)].counters["bytes_per_token_fp16"] for heads in (14, 7, 2, 1)]
    assert per_token == [86_016, 43_008, 12_288, 6_144]


@pytest.mark.parametrize(("slower", "outcome"), [(3.0, Outcome.HOLDS), (0.5, Outcome.DOES_NOT_HOLD)])
def test_a8_is_judged_by_the_reading_times(lab, slower, outcome):
    times = {14: slower, 7: 1.0, 2: 1.0, 1: 1.0}
    measured = {(heads,): timed(ClaimGroupedHeads, (heads,), s, lab) for heads, s in times.items()}
    assert verdict(ClaimGroupedHeads, lab, measured).outcome is outcome


def test_a8_sees_attention_over_half_the_cache(lab, monkeypatch):
    honest = bench_grouped_heads.grouped_step
    monkeypatch.setattr(bench_grouped_heads, "grouped_step", lambda q, k, v: honest(q, k[:, :, ::2], v[:, :, ::2]))
    with pytest.raises(AssertionError, match="grouped attention differs"):
        run(ClaimGroupedHeads, lab, 2)


def test_a8_sees_a_variant_that_is_none(lab, monkeypatch):
    from bench_utils.models.shapes import chapter_config

    honest = kv_cache.filled_cache
    monkeypatch.setattr(
        bench_grouped_heads, "filled_cache", lambda config, **rest: honest(chapter_config(2), **rest)
    )
    with pytest.raises(AssertionError, match="expected"):
        run(ClaimGroupedHeads, lab, 14)


# --- A9


def test_a9_finds_the_crossing_and_the_chapters_figures(lab):
    found = run_all(ClaimLongContext, lab)
    shown = verdict(ClaimLongContext, lab, found)
    assert shown.outcome is Outcome.HOLDS
    assert "from 106,812 tokens on" in shown.measured
    assert "15.625 GiB at 128,000 against 13.039" in shown.measured


def test_a9_needs_the_context_just_before_the_crossing(lab):
    found = run_all(ClaimLongContext, lab)
    del found[(106_811,)]
    assert verdict(ClaimLongContext, lab, found).outcome is Outcome.INCONCLUSIVE


def test_a9_sees_a_cache_of_another_dtype(lab, monkeypatch):
    honest = bench_long_context.filled_cache
    monkeypatch.setattr(
        bench_long_context,
        "filled_cache",
        lambda config, **kept: honest(config, **{**kept, "dtype": torch.float32}),
    )
    with pytest.raises(AssertionError, match="by formula"):
        run(ClaimLongContext, lab, 1_000)


# --- all of them


ALL = [
    ClaimIdenticalTokens,
    ClaimSpeedup,
    ClaimSingleHead,
    ClaimMacs,
    ClaimWorkingMemory,
    ClaimCacheBytes,
    ClaimResidentTokens,
    ClaimGroupedHeads,
    ClaimLongContext,
]


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.id)
def test_every_claim_tracks_counters_that_it_really_has(claim, lab):
    for case in claim.cases():
        if counters := run(claim, lab, *case).counters:
            assert set(claim.tracked) <= set(counters)
            return
    pytest.fail("no case was counted")


def test_there_are_at_most_a_dozen_cases_a_claim_and_each_says_what_the_chapter_has():
    assert [claim.id for claim in ALL] == [f"A{n}" for n in range(1, 10)]
    for claim in ALL:
        assert len(claim.cases()) <= 12
        assert claim.chapter
