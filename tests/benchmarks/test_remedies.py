"""Claim E6 on the tiny model: green as it is, red with a fault planted in what it watches."""

import json
from dataclasses import replace

import pytest
import torch

from bench_utils.claim import Outcome
from bench_utils.inference import remedies
from bench_utils.inference.kernel_choice import Choice
from bench_utils.inference.kernels import INT8_TOKEN
from bench_utils.inference.projections import Readers, layer_readers
from bench_utils.models import loading
from bench_utils.models.cache_layout import UnknownCacheError
from benchmarks.quality import bench_remedies
from benchmarks.quality.bench_remedies import EIGHT, FOUR, REMEDIES, ClaimRemedies
from tests.benchmarks.support import lapped, run, verdict
from tests.kernels_here import needs_mark

pytestmark = needs_mark(INT8_TOKEN, dtype=torch.float32)


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
        assert len(calibrated.activations) > calibrated.activations.shape[1]
        assert not torch.equal(calibrated.activations[:100], scored.activations[:100])


def test_the_calibration_lies_behind_all_that_e1_scores():
    """1,000 characters a seed; E1 scores 2,048 tokens, of six characters at most."""
    assert bench_remedies.CALIBRATION_SEED * 1_000 > 6 * 2_048


# --- what each remedy makes, on activations with outliers that go together


@pytest.fixture(scope="module")
def readers():
    generator = torch.Generator().manual_seed(4)
    common = torch.randn(700, 8, generator=generator) @ torch.randn(8, 128, generator=generator)
    x = 0.3 * torch.randn(700, 128, generator=generator) + 0.3 * common
    x[:, [7, 90]] *= 40
    x[3] *= 12  # a token that reaches far in every input
    weights = tuple(torch.randn(n, 128, generator=generator) * 0.05 for n in (64, 32))
    both = Readers("q, k, v", weights, x[:512], follows_norm=True, is_scalable=True)
    return both, replace(both, activations=x[512:])


@pytest.fixture(scope="module")
def errors(readers):
    calibrated, scored = readers
    exact = torch.cat([scored.activations @ weight.t() for weight in scored.weights], dim=1)
    found = {}
    for bits, by_name in REMEDIES.items():
        for name, remedy in by_name.items():
            prepared = remedy(calibrated)
            made = torch.cat(
                [product(prepared.arriving(scored.activations)) for product in prepared.products], dim=1
            )
            found[f"{bits} {name}"] = float((made - exact).norm() / exact.norm())
    return found


@pytest.mark.parametrize(
    ("worse", "better", "factor"),
    [
        ("8 bits plain", "8 bits per-channel scales", 1.3),
        ("8 bits per-channel scales", "8 bits LLM.int8()", 1.3),
        ("8 bits plain", "8 bits SmoothQuant", 1.3),
        ("8 bits plain", "8 bits weight-only", 3.0),
        ("4 bits plain", "4 bits per-channel scales", 1.02),
        ("4 bits per-channel scales", "4 bits groups of 128", 1.02),
        ("4 bits groups of 128", "4 bits AWQ", 1.3),
        ("4 bits groups of 128", "4 bits GPTQ", 1.3),
        ("4 bits GPTQ", "4 bits GPTQ, most active first", 1.02),
        ("4 bits plain", "8 bits weight-only", 10.0),
    ],
)
def test_each_remedy_has_less_error_than_what_it_adds_to(errors, worse, better, factor):
    assert errors[better] * factor < errors[worse], errors


def test_scales_go_only_where_something_takes_them_up(readers):
    calibrated, scored = readers
    no_norm = replace(calibrated, follows_norm=False, is_scalable=False)
    x = scored.activations
    for name, bits, plain in (("SmoothQuant", EIGHT, "plain"), ("AWQ", FOUR, "groups of 128")):
        found, expected = (REMEDIES[bits][each](no_norm).products[0](x) for each in (name, plain))
        assert torch.equal(found, expected)
    assert REMEDIES[EIGHT]["SmoothQuant"](calibrated).scales is not None


# --- the verdict


def measured(lab, num_outliers=3, **errors):
    """E6 as measured, with errors made up: each remedy's below the one before it, unless it is given."""
    found = {}
    for bits, by_name in REMEDIES.items():
        laps = {f"{name}: {lap}": 1.0 for name in by_name for lap in ("prepare", "products")}
        each = lapped(ClaimRemedies, (bits,), laps, lab)
        order = {name: 0.5 - 0.01 * index for index, name in enumerate(by_name)}
        made_up = {f"error, {name}": errors.get(f"{bits} {name}", error) for name, error in order.items()}
        counters = {**each.counters, **made_up, "num_outlier_inputs": num_outliers}
        found[(bits,)] = replace(each, counters=counters)
    return found


def test_e6_holds_where_every_remedy_has_less_error(lab):
    judged = verdict(ClaimRemedies, lab, measured(lab))
    assert judged.outcome is Outcome.HOLDS
    assert judged.figures["llm_int8_cost"].value == pytest.approx(1.0)
    assert "4 bits GPTQ, most active first" in judged.picture


@pytest.mark.parametrize("error", [0.9, float("nan")])
@pytest.mark.parametrize(
    "name",
    [
        *("8 bits per-channel scales", "8 bits LLM.int8()", "8 bits SmoothQuant", "8 bits weight-only"),
        *("4 bits per-channel scales", "4 bits groups of 128", "4 bits AWQ", "4 bits GPTQ"),
        "4 bits GPTQ, most active first",
    ],
)
def test_e6_names_a_remedy_that_does_not_help(lab, name, error):
    judged = verdict(ClaimRemedies, lab, measured(lab, **{name: error}))
    assert judged.outcome is Outcome.DOES_NOT_HOLD
    assert name.split(" ", 2)[2] in judged.reason


@pytest.mark.parametrize(("num_outliers", "outcome"), [(1, Outcome.DOES_NOT_HOLD), (0, Outcome.HOLDS)])
def test_e6_wants_llm_int8_to_beat_what_it_builds_on_where_there_are_outliers(lab, num_outliers, outcome):
    found = measured(lab, num_outliers, **{"8 bits LLM.int8()": 0.49, "8 bits per-channel scales": 0.49})
    assert verdict(ClaimRemedies, lab, found).outcome is outcome


def test_e6_names_the_projections_that_a_remedy_harms(lab):
    found = measured(lab)
    made_up = {"q, k, v": 0.1, "o": 0.1, "gate, up": 0.1, "down": 0.1}
    notes = {
        **found[(FOUR,)].notes,
        "errors, groups of 128": json.dumps(made_up),
        "errors, GPTQ": json.dumps({**made_up, "q, k, v": 0.01, "down": 0.12}),
    }
    found[(FOUR,)] = replace(found[(FOUR,)], notes=notes)
    judged = verdict(ClaimRemedies, lab, found)
    assert judged.outcome is Outcome.HOLDS
    assert "GPTQ does harm to down" in judged.measured
    assert "GPTQ does harm to q, k, v" not in judged.measured


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
    with pytest.raises(AssertionError, match="plain: the error is not finite"):
        run(ClaimRemedies, lab, EIGHT)


def test_e6_says_what_the_device_lacks(lab, monkeypatch):
    lacking = Choice(None, "torch _int_mm runs on cpu, cuda, not on mps")
    monkeypatch.setattr(bench_remedies, "choose", lambda *_: lacking)
    assert run(ClaimRemedies, lab, EIGHT).validity.code == "not-applicable"
    assert "not on mps" in run(ClaimRemedies, lab, EIGHT).validity.reason
    assert run(ClaimRemedies, lab, FOUR).validity.is_ok


def test_e6_names_another_architecture(lab, monkeypatch):
    def refuse(config):
        raise UnknownCacheError("config field model_type='gpt2'")

    monkeypatch.setattr(bench_remedies.facts, "decoder_shape", refuse)
    assert "model_type='gpt2'" in run(ClaimRemedies, lab, EIGHT).validity.reason


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
    assert [each.is_scalable for each in readers.values()] == [True, False, True, True], "two heads share each v"
    assert readers["o"].activations.shape == (12, 32)


def test_a_layer_of_another_kind_is_named(tiny, monkeypatch):
    monkeypatch.setattr(tiny.model.config, "model_type", "phi")
    with pytest.raises(UnknownCacheError, match="model_type='phi'"):
        layer_readers(tiny.model, torch.arange(4)[None], 0)
