"""Claims E4 and E5 on the tiny model, whose random weights pass for learned ones in a local folder."""

import json
from dataclasses import replace

import pytest
import torch

from bench_utils.claim import Outcome
from benchmarks.quality import bench_activation_outliers, bench_int8_levels
from benchmarks.quality.bench_activation_outliers import ClaimActivationOutliers, draw
from benchmarks.quality.bench_int8_levels import ClaimInt8Levels
from tests.benchmarks.support import run, run_all, verdict

# --- E4


def with_outlier(honest, dimension_of, size=1e6):
    """A residual stream in which one dimension reaches far, the same or another for each prompt."""

    def stream(model, ids):
        found = honest(model, ids).clone()
        found[:, 0, dimension_of(ids)] = size
        return found

    return stream


def test_e4_holds_where_the_same_dimension_reaches_far_whatever_the_prompt(lab, monkeypatch):
    honest = bench_activation_outliers.residual_stream
    monkeypatch.setattr(bench_activation_outliers, "residual_stream", with_outlier(honest, lambda _ids: 7))
    found = run_all(ClaimActivationOutliers, lab)
    assert {each.counters["dimension"] for each in found.values()} == {7}
    assert found[("84 tokens",)].counters["num_layers_there"] == 3
    shown = verdict(ClaimActivationOutliers, lab, found)
    assert shown.outcome is Outcome.HOLDS
    assert "dimension 7 reaches 1,000,000.0, 1,000,000.0, 1,000,000.0 for 3 prompts" in shown.measured
    assert "4,096 -" in shown.picture


def test_e4_does_not_hold_where_each_prompt_has_its_own(lab, monkeypatch):
    honest = bench_activation_outliers.residual_stream
    monkeypatch.setattr(
        bench_activation_outliers, "residual_stream", with_outlier(honest, lambda ids: int(ids.sum()) % 32)
    )
    shown = verdict(ClaimActivationOutliers, lab, run_all(ClaimActivationOutliers, lab))
    assert shown.outcome is Outcome.DOES_NOT_HOLD


def test_e4_does_not_hold_without_outliers(lab):
    assert (
        verdict(ClaimActivationOutliers, lab, run_all(ClaimActivationOutliers, lab)).outcome
        is Outcome.DOES_NOT_HOLD
    )


def test_e4_cannot_tell_from_one_prompt(lab):
    one = {("84 tokens",): run(ClaimActivationOutliers, lab, "84 tokens")}
    assert verdict(ClaimActivationOutliers, lab, one).outcome is Outcome.INCONCLUSIVE


def test_e4_keeps_its_histogram_for_a_report(lab):
    kept = json.loads(run(ClaimActivationOutliers, lab, "84 tokens").notes["histogram"])
    assert sum(kept["counts"]) == 32
    assert kept["layer"] == 2


def test_e4_sees_an_activation_that_is_not_finite(lab, monkeypatch):
    honest = bench_activation_outliers.residual_stream
    monkeypatch.setattr(
        bench_activation_outliers, "residual_stream", with_outlier(honest, lambda _ids: 7, float("nan"))
    )
    with pytest.raises(AssertionError, match="not finite"):
        run(ClaimActivationOutliers, lab, "84 tokens")


def test_a_single_dimension_far_out_can_be_seen_in_the_drawing():
    """The chapter's own histogram."""
    counts = [254, 283, 226, 93, 18, 9, 7, 5, 0, 0, 0, 1, 0]
    lines = draw({"layer": 16, "edges": bench_activation_outliers.EDGES, "counts": counts}).splitlines()
    assert lines[2] == "      1 -     2 | " + "#" * 40 + " 283"
    assert lines[9] == "    128 -   256 | " + " " * 40 + " 0"
    assert lines[12].strip().startswith("1,024 - 4,096 | #####")


# --- E5


def test_e5_counts_levels_of_the_whole_and_without_the_outliers(lab, monkeypatch):
    honest = bench_int8_levels.residual_stream
    monkeypatch.setattr(bench_int8_levels, "residual_stream", with_outlier(honest, lambda _ids: 7))
    found = run_all(ClaimInt8Levels, lab)
    whole, excluded = (found[(name,)].counters for name in ("all dimensions", "without the top 4"))
    assert whole["scale"] == pytest.approx(1e6 / 127)
    assert whole["levels_used"] <= 4
    assert excluded["levels_used"] > 50
    assert whole["levels_50"] == 1
    assert verdict(ClaimInt8Levels, lab, found).outcome is Outcome.HOLDS


def test_e5_does_not_hold_where_values_fill_the_levels(lab, monkeypatch):
    even = torch.linspace(-1, 1, 84 * 32).view(1, 84, 32)[:, torch.randperm(84)]
    monkeypatch.setattr(bench_int8_levels, "residual_stream", lambda model, ids: even)
    assert verdict(ClaimInt8Levels, lab, run_all(ClaimInt8Levels, lab)).outcome is Outcome.DOES_NOT_HOLD


def test_e5_sees_a_scale_that_clips(lab, monkeypatch):
    monkeypatch.setattr(bench_int8_levels, "int8_scale", lambda values: float(values.abs().max()) / 254)
    with pytest.raises(AssertionError, match=r"does not reach the largest|levels: symmetric"):
        run(ClaimInt8Levels, lab, "all dimensions")


@pytest.mark.parametrize("claim", [ClaimActivationOutliers, ClaimInt8Levels])
def test_random_weights_have_none(lab, claim):
    lab.settings = replace(lab.settings, model="qwen2.5-0.5b-shape")
    assert "learned no outliers" in run(claim, lab, *claim.cases()[0]).validity.reason
