"""Claims G1 to G3 on the tiny model with a tokenizer of words: green as they are, red with a fault planted."""

import json
import random
from dataclasses import replace

import pytest
import torch

from bench_utils.claim import Outcome
from bench_utils.measure.measurement import Measurement
from bench_utils.models import loading
from benchmarks.distillation import bench_soft_labels, bench_students, bench_temperature
from benchmarks.distillation.bench_soft_labels import OWN, SENTENCES, ClaimSoftLabels
from benchmarks.distillation.bench_students import CONSTANT, HARD, SEEDS, SOFT, ClaimStudents
from benchmarks.distillation.bench_temperature import TEMPERATURES, ClaimTemperature
from tests.benchmarks.support import run, run_all, verdict
from tests.words import Words


@pytest.fixture
def worded(lab, monkeypatch, tmp_path):
    """The lab, its model with a tokenizer of words, and a corpus of its own."""
    generator = random.Random(0)
    text = tmp_path / "mine.txt"
    text.write_text(" ".join("x" * generator.randrange(1, 40) for _ in range(6_000)))
    honest, kept = loading.load_float32, {}

    def load(settings):
        return kept.setdefault("loaded", replace(honest(settings), tokenizer=Words(), _kept={}))

    monkeypatch.setattr(loading, "load_float32", load)
    lab.settings = replace(lab.settings, corpus=str(text))
    return lab


# --- G1


def test_g1_shows_the_most_likely_tokens_of_every_sentence(worded):
    found = run_all(ClaimSoftLabels, worded)
    judged = verdict(ClaimSoftLabels, worded, found)
    for sentence, text in SENTENCES.items():
        likely = json.loads(found[(sentence,)].notes["most_likely"])
        assert [p for _, p in likely] == sorted((p for _, p in likely), reverse=True)
        assert found[(sentence,)].counters["first"] == pytest.approx(likely[0][1])
        assert text in judged.picture
    own = found[(OWN,)].notes["sentence"]
    assert own.startswith("x")
    assert own[: bench_soft_labels.WIDEST].strip() in judged.picture


def test_g1_takes_a_sentence_of_the_users_where_there_is_one(worded):
    worded.settings = replace(worded.settings, corpus="")
    assert "--claims-corpus" in run(ClaimSoftLabels, worded, OWN).validity.reason


@pytest.mark.parametrize(("worth", "outcome"), [(40.0, Outcome.HOLDS), (1.5, Outcome.DOES_NOT_HOLD)])
def test_g1_wants_more_than_two_tokens_worth(worded, worth, outcome):
    found = run_all(ClaimSoftLabels, worded)
    made_up = {
        case: replace(each, counters={**each.counters, "worth_tokens": worth}) for case, each in found.items()
    }
    assert verdict(ClaimSoftLabels, worded, made_up).outcome is outcome


def test_g1_is_worth_as_many_tokens_as_are_equally_likely(worded, monkeypatch):
    monkeypatch.setattr(bench_soft_labels, "tempered", lambda *_: torch.full((8,), 1 / 8, dtype=torch.float64))
    assert run(ClaimSoftLabels, worded, "milk").counters["worth_tokens"] == pytest.approx(8.0)


def test_g1_sees_probabilities_that_are_none(worded, monkeypatch):
    monkeypatch.setattr(bench_soft_labels, "tempered", lambda *_: torch.full((8,), 1 / 7, dtype=torch.float64))
    with pytest.raises(AssertionError, match=r"the probabilities add up to 1\.14"):
        run(ClaimSoftLabels, worded, "milk")


def test_g1_needs_a_tokenizer(lab):
    assert "no tokenizer" in run(ClaimSoftLabels, lab, "milk").validity.reason


# --- G2


def test_g2_holds_at_every_temperature_with_or_without_a_tokenizer(worded, lab):
    found = run_all(ClaimTemperature, worded)
    assert verdict(ClaimTemperature, worded, found).outcome is Outcome.HOLDS
    ratios = [found[(temperature,)].counters["ratio"] for temperature in TEMPERATURES]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(ratios[1] ** 2)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_g2_sees_a_temperature_that_is_not_applied(lab, monkeypatch, temperature):
    honest = bench_temperature.tempered
    monkeypatch.setattr(bench_temperature, "tempered", lambda logits, _temperature: honest(logits, 1.0))
    with pytest.raises(AssertionError, match="the law has"):
        run(ClaimTemperature, lab, temperature)


# --- G3


def test_g3_teaches_every_student_the_same_tokens(worded):
    found = run(ClaimStudents, worded, 0)
    assert (
        found.counters["num_seen"] == 3 * bench_students.QUICK_STEPS * bench_students.BATCH * bench_students.WINDOW
    )
    by_window = json.loads(found.notes["kl_by_window"])
    assert {name: len(values) for name, values in by_window.items()} == dict.fromkeys(
        (HARD, *SOFT, CONSTANT, "untaught"), bench_students.NUM_HELD_OUT
    )
    assert run(ClaimStudents, worded, 2).validity.code == "not-applicable", "the full profile's"


def taught(**kl):
    """G3 as measured: divergences a little apart from seed to seed, together."""
    found = {}
    for seed in SEEDS:
        own = dict.fromkeys(SOFT, 0.01 * (seed % 2))
        names = (HARD, *SOFT, CONSTANT, "untaught")
        counters = {f"kl, {name}": kl.get(name, 2.0) + 0.1 * seed + own.get(name, 0.0) for name in names}
        found[(seed,)] = Measurement("G3", {"seed": seed}, counters=counters)
    return found


ONE, TWO = SOFT


@pytest.mark.parametrize(
    ("kl", "outcome"),
    [
        ({HARD: 2.0, ONE: 1.0, TWO: 1.1}, Outcome.HOLDS),
        ({HARD: 2.0, ONE: 1.0, TWO: 2.1}, Outcome.DOES_NOT_HOLD),
        ({HARD: 1.0, ONE: 1.5, TWO: 1.5}, Outcome.DOES_NOT_HOLD),
    ],
)
def test_g3_is_judged_by_the_difference_seed_by_seed(lab, kl, outcome):
    judged = verdict(ClaimStudents, lab, taught(**kl))
    assert judged.outcome is outcome
    assert judged.figures[f"gain {ONE}"].value == pytest.approx(kl[HARD] - kl[ONE], abs=0.01)


def test_g3_decides_nothing_by_one_seed(lab):
    only = {case: each for case, each in taught().items() if case == (0,)}
    assert verdict(ClaimStudents, lab, only).outcome is Outcome.INCONCLUSIVE


def test_g3_sees_a_divergence_that_is_not_finite(worded, monkeypatch):
    monkeypatch.setattr(bench_students, "divergence", lambda *_: torch.full((2, 2), float("inf")))
    with pytest.raises(AssertionError, match="hard: a divergence is not finite"):
        run(ClaimStudents, worded, 0)
