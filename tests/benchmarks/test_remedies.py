"""Claim E6 on the tiny model: green as it is, red with a fault planted in what it watches."""

import json
from dataclasses import replace

import pytest
import torch

from bench_utils.claim import Outcome
from bench_utils.inference import remedies
from bench_utils.inference.kernel_choice import Choice
from bench_utils.inference.projections import layer_readers
from bench_utils.models import loading
from bench_utils.models.facts import UnknownCacheError
from benchmarks.quality import bench_remedies
from benchmarks.quality.bench_remedies import EIGHT, FOUR, REMEDIES, ClaimRemedies, order_of
from tests.benchmarks.support import lapped, run, verdict


@pytest.mark.parametrize("bits", [EIGHT, FOUR])
def test_e6_reads_the_error_of_every_remedy(lab, bits):
    found = run(ClaimRemedies, lab, bits)
    for name in REMEDIES[bits]:
        errors = json.loads(found.notes[f"errors, {name}"])
        assert list(errors) == ["q, k, v", "o", "gate, up", "down"]
        assert found.counters[f"error, {name}"] == pytest.approx(sum(errors.values()) / 4)
        assert all(0 < error < 1 for error in errors.values())
    assert found.counters["layer"] == 2


def test_e6_calibrates_on_other_text_than_it_scores(lab):
    claim = ClaimRemedies()
    claim._lab = lab
    claim.setup(FOUR)
    for calibrated, scored in zip(claim.calibrated, claim.scored, strict=True):
        assert not torch.equal(calibrated.activations[:100], scored.activations[:100])


def measured(lab, **errors):
    """E6 as measured, with the errors of some remedies made up."""
    found = {}
    for bits, by_name in REMEDIES.items():
        laps = {f"{name}: {lap}": 1.0 for name in by_name for lap in ("prepare", "products")}
        each = lapped(ClaimRemedies, (bits,), laps, lab)
        order = {name: 0.5 - 0.01 * index for index, name in enumerate(by_name)}
        made_up = {f"error, {name}": errors.get(f"{bits} {name}", error) for name, error in order.items()}
        found[(bits,)] = replace(each, counters={**each.counters, **made_up})
    return found


def test_e6_holds_where_every_remedy_has_less_error(lab):
    judged = verdict(ClaimRemedies, lab, measured(lab))
    assert judged.outcome is Outcome.HOLDS
    assert judged.figures["llm_int8_cost"].value == pytest.approx(1.0)
    assert "4 bits GPTQ, most active first" in judged.picture


@pytest.mark.parametrize("name", [f"{bits} {better}" for bits in REMEDIES for _, better in order_of(bits)])
def test_e6_names_a_remedy_that_does_not_help(lab, name):
    judged = verdict(ClaimRemedies, lab, measured(lab, **{name: 0.9}))
    assert judged.outcome is Outcome.DOES_NOT_HOLD
    assert name.split(" ", 2)[2] in judged.reason


def test_e6_sees_an_awq_that_does_not_try_plain_rounding(lab, monkeypatch):
    def from_one(x, weights, scheme):
        scales = x.abs().mean(0) ** 3
        return scales / (scales.max() * scales.min()).sqrt(), 3.0

    monkeypatch.setattr(bench_remedies, "awq_scales", from_one)
    with pytest.raises(AssertionError, match=r"AWQ loses .*, rounding"):
        run(ClaimRemedies, lab, FOUR)


def test_e6_sees_a_product_that_is_not_finite(lab, monkeypatch):
    honest = remedies.Int8Weight.multiply
    monkeypatch.setattr(
        remedies.Int8Weight, "multiply", lambda self, *quantized: honest(self, *quantized) * torch.nan
    )
    with pytest.raises(AssertionError, match="plain is not finite"):
        run(ClaimRemedies, lab, EIGHT)


def test_e6_says_what_the_device_lacks(lab, monkeypatch):
    monkeypatch.setattr(
        bench_remedies, "choose", lambda *_: Choice(None, "torch _int_mm runs on cpu, cuda, not on mps")
    )
    assert run(ClaimRemedies, lab, EIGHT).validity.code == "not-applicable"
    assert "not on mps" in run(ClaimRemedies, lab, EIGHT).validity.reason
    assert run(ClaimRemedies, lab, FOUR).validity.is_ok


def test_e6_means_nothing_for_random_weights(lab, monkeypatch):
    honest = loading.load_float32

    def random(settings):
        loaded = honest(settings)
        return replace(loaded, identity=replace(loaded.identity, is_random=True))

    monkeypatch.setattr(loading, "load_float32", random)
    assert "learned no outliers" in run(ClaimRemedies, lab, EIGHT).validity.reason


# --- what is read


@torch.inference_mode()
def test_readers_read_what_their_products_are_made_of(tiny):
    ids = torch.arange(12).view(2, 6)
    outputs = {}
    layer = tiny.model.model.layers[1]
    for name, linear in (
        ("q, k, v", layer.self_attn.k_proj),
        ("gate, up", layer.mlp.up_proj),
        ("down", layer.mlp.down_proj),
    ):
        linear.register_forward_hook(lambda _l, _a, out, name=name: outputs.update({name: out.flatten(0, 1)}))
    readers = {each.name: each for each in layer_readers(tiny.model, ids, 1)}
    for name, index in (("q, k, v", 1), ("gate, up", 1), ("down", 0)):
        product = readers[name].activations @ readers[name].weights[index].t()
        assert torch.allclose(product, outputs[name].float(), rtol=1e-4, atol=1e-4)
    assert [each.follows_norm for each in readers.values()] == [True, False, True, False]
    assert readers["o"].activations.shape == (12, 32)


def test_a_layer_of_another_kind_is_named(tiny, monkeypatch):
    monkeypatch.setattr(tiny.model.config, "model_type", "phi")
    with pytest.raises(UnknownCacheError, match="model_type='phi'"):
        layer_readers(tiny.model, torch.arange(4)[None], 0)
