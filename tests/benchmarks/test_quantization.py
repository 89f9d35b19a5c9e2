"""Claims D1 to D4 on the tiny model: green as they are, red with a fault planted in what each one watches."""

from dataclasses import replace

import pytest
import torch

from bench_utils.claim import Outcome
from bench_utils.inference import projections, quantizers
from bench_utils.inference.quantizers import PackedTensor
from benchmarks.quantization import bench_weight_bytes
from benchmarks.quantization.bench_granularity import ClaimGranularity
from benchmarks.quantization.bench_nf4_parts import ClaimNf4Parts
from benchmarks.quantization.bench_weight_bytes import ClaimWeightBytes, chapter_ratio
from benchmarks.quantization.bench_weight_outliers import ClaimWeightOutliers, spread_of
from tests.benchmarks.support import run, run_all, verdict

# --- D1


def test_d1_counts_codes_scales_and_what_stays_in_16_bit(lab):
    found = run_all(ClaimWeightBytes, lab)
    counted = {case[0]: each.counters for case, each in found.items()}
    others = 640 * 32 + 7 * 32  # the tied embedding, and the norms
    assert counted["float32"]["model_bytes"] == 2 * counted["float16"]["model_bytes"]
    for name in ("int8 row", "NF4 block 64"):
        assert counted[name]["model_bytes"] - counted[name]["projection_bytes"] == 2 * others
    assert counted["int8 row"]["bits_per_weight"] > 8
    assert verdict(ClaimWeightBytes, lab, found).outcome is Outcome.HOLDS


def test_d1_has_the_chapters_model_at_2_2_not_4():
    assert chapter_ratio() == pytest.approx(2.163, abs=1e-3)


def test_d1_sees_codes_that_are_not_packed(lab, monkeypatch):
    monkeypatch.setattr(quantizers, "pack_nibbles", lambda codes: codes)
    with pytest.raises(AssertionError, match="B packed, the formula has"):
        run(ClaimWeightBytes, lab, "int4 group 128")


def test_d1_sees_another_model_of_the_chapter(monkeypatch):
    honest = bench_weight_bytes.chapter_config

    def wider():
        config = honest()
        config.intermediate_size += 1
        return config

    monkeypatch.setattr(bench_weight_bytes, "chapter_config", wider)
    with pytest.raises(AssertionError, match="parameters and projected ones"):
        chapter_ratio()


# --- D2


def test_d2_falls_with_the_territory(lab):
    """Heavier tails than normal, as learned weights have them: with so few columns a group is a row."""
    found = run_all(ClaimGranularity, lab)
    assert all(each.counters["num_projections"] == 3 * 7 for each in found.values())
    means = {case[0]: each.counters["mean_error"] for case, each in found.items()}
    assert means["int8 tensor"] > means["int8 row"]
    assert means["int4 tensor"] > means["int4 row"] > means["NF4 block 64"]


def test_d2_is_a_finding_about_the_weights(lab):
    measured = run_all(ClaimGranularity, lab)
    falling = {
        "int4 tensor": 0.5, "int4 row": 0.15, "int4 group 128": 0.13, "NF4 block 64": 0.09,
    }  # fmt: skip
    for name, error in falling.items():
        measured[(name,)] = replace(measured[(name,)], counters={"mean_error": error, "worst_error": error})
    found = verdict(ClaimGranularity, lab, measured)
    assert found.outcome is Outcome.HOLDS
    assert "rows divide by 3.33" in found.measured
    assert "NF4 has 31% less" in found.measured
    measured[("NF4 block 64",)] = replace(
        measured[("NF4 block 64",)], counters={"mean_error": 0.2, "worst_error": 0.2}
    )
    assert verdict(ClaimGranularity, lab, measured).outcome is Outcome.DOES_NOT_HOLD


@pytest.mark.parametrize("scheme", ["int8 row", "int4 group 128", "NF4 block 64"])
def test_d2_sees_codes_of_the_neighbouring_level(lab, monkeypatch, scheme):
    honest = projections.quantize

    def off_by_one(weight, scheme, name):
        packed = honest(weight, scheme, name)
        codes = packed.codes.clone()
        codes[0] ^= 1 if packed.codes.dtype == torch.int8 else 16
        return replace(packed, codes=codes)

    monkeypatch.setattr(projections, "quantize", off_by_one)
    with pytest.raises(AssertionError, match="steps of its scale"):
        run(ClaimGranularity, lab, scheme)


# --- D3


def test_d3_takes_the_two_gains_apart(lab):
    measured = run_all(ClaimNf4Parts, lab)
    for (name,), error in zip(measured, (0.132, 0.12, 0.11, 0.095), strict=True):
        measured[(name,)] = replace(measured[(name,)], counters={"mean_error": error})
    found = verdict(ClaimNf4Parts, lab, measured)
    assert found.outcome is Outcome.HOLDS
    assert "28.0% less error than int4 group 128: 9.1% by blocks of 64" in found.measured
    measured[("NF4 block 128",)] = replace(measured[("NF4 block 128",)], counters={"mean_error": 0.14})
    assert verdict(ClaimNf4Parts, lab, measured).outcome is Outcome.DOES_NOT_HOLD


# --- D4


def test_d4_counts_what_lies_far_out():
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    weight[3, 4], weight[5, 6] = 20.0, -30.0
    found = spread_of(weight, 6)
    assert found.num_beyond == 2
    assert found.largest == 30.0
    assert found.largest_in_sigmas == pytest.approx(30.0, rel=0.05)


def test_d4_means_nothing_on_random_weights(lab):
    lab.settings = replace(lab.settings, model="qwen2.5-0.5b-shape")
    assert "as normal as they were drawn" in run(ClaimWeightOutliers, lab, 6).validity.reason


@pytest.mark.parametrize(
    ("sigmas", "num_beyond", "outcome"),
    [(24.1, 692, Outcome.HOLDS), (5.1, 0, Outcome.DOES_NOT_HOLD), (24.1, 100_000, Outcome.DOES_NOT_HOLD)],
)
def test_d4_needs_few_weights_and_far_out(lab, sigmas, num_beyond, outcome):
    found = run(ClaimWeightOutliers, lab, 6)
    counters = {**found.counters, "worst_in_sigmas": sigmas, "worst_beyond": num_beyond, "worst_weights": 4_358_144}
    shown = verdict(ClaimWeightOutliers, lab, {(6,): replace(found, counters=counters)})
    assert shown.outcome is outcome
    assert f"max/std {sigmas}, {num_beyond:,} of 4,358,144 beyond 6 sigma" in shown.measured


def test_a_step_is_that_of_each_territory():
    weight = torch.tensor([[7.0, 1.0], [70.0, 10.0]])
    packed = quantizers.quantize(weight, quantizers.INT4_ROW)
    assert isinstance(packed, PackedTensor)
    assert packed.in_steps(torch.full((2, 2), 5.0)).tolist() == [[5.0, 5.0], [0.5, 0.5]]
