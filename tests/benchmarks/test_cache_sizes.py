"""Claims A6 to A9 on the tiny model: green as they are, red with a fault planted in what each one watches."""

from dataclasses import replace

import pytest
import torch

from bench_utils.claim import Outcome
from bench_utils.inference import kv_cache
from benchmarks.kv_cache import (
    bench_cache_bytes,
    bench_grouped_heads,
    bench_long_context,
    bench_resident_tokens,
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
from tests.benchmarks.support import run, run_all, timed, verdict
from tests.conftest import tiny_config

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
