"""Claims E1 to E3 on the tiny model with a tokenizer of words: green as they are, red with a fault planted."""

import json
import random
import sys
from dataclasses import replace

import pytest
import torch

from bench_utils.claim import Outcome
from bench_utils.inference import quantizers
from bench_utils.measure.measurement import Measurement, Validity
from bench_utils.models import loading, sources
from benchmarks.quality import bench_agreement, bench_battery, bench_perplexity
from benchmarks.quality.bench_agreement import ClaimAgreement
from benchmarks.quality.bench_battery import ALIKE, GREEDY, PENALISED, ClaimBattery, told_apart
from benchmarks.quality.bench_perplexity import REFERENCE, ClaimPerplexity, ratio_of
from tests.benchmarks.support import run, run_all, verdict
from tests.words import Words


@pytest.fixture
def worded(lab, monkeypatch, tmp_path):
    """The lab, its model with a tokenizer of words, and a corpus of its own."""
    generator = random.Random(0)
    text = tmp_path / "mine.txt"
    text.write_text(" ".join("x" * generator.randrange(1, 400) for _ in range(600)))
    honest = loading.load_float32
    kept = {}

    def load(settings):
        loaded = honest(settings)
        return kept.setdefault("loaded", replace(loaded, tokenizer=Words(), _kept={}))

    monkeypatch.setattr(loading, "load_float32", load)
    lab.settings = replace(lab.settings, corpus=str(text))
    return lab


# --- E1


def test_e1_scores_every_scheme_on_the_same_tokens(worded):
    found = run_all(ClaimPerplexity, worded)
    perplexities = {case[0]: each.counters.get("perplexity") for case, each in found.items()}
    assert found[("llama.cpp",)].validity.code == "not-applicable"
    for name in bench_perplexity.SCHEMES:
        assert found[(name,)].counters["num_scored"] == found[(REFERENCE,)].counters["num_scored"] == 510
        assert perplexities[name] != perplexities[REFERENCE]
    assert (
        found[("int4 group 128",)].counters["bits_per_weight"] > found[("int4 tensor",)].counters["bits_per_weight"]
    )
    assert "mine.txt" in found[(REFERENCE,)].notes["corpus"]
    losses = json.loads(found[(REFERENCE,)].notes["losses_nats"])
    assert perplexities[REFERENCE] == pytest.approx(torch.tensor(losses).mean().exp().item(), rel=1e-3)


def scored(**shifts):
    """E1 as measured: losses that are the reference's, shifted by so much and a little noise of their own."""
    generator = random.Random(1)
    reference = [generator.uniform(1, 5) for _ in range(2_044)]
    found = {}
    for name in (REFERENCE, *bench_perplexity.SCHEMES):
        noise = 0.05 if name in shifts else 0.0
        losses = [loss + shifts.get(name, 0.0) + generator.gauss(0, noise) for loss in reference]
        found[(name,)] = Measurement(
            "E1",
            {"scheme": name},
            counters={"perplexity": 1.0, "bits_per_weight": 4.0},
            notes={"losses_nats": json.dumps(losses), "protocol": "a protocol", "corpus": "a text"},
        )
    return found


AS_EXPECTED = {
    **{"int8 tensor": 0.04, "int8 row": 0.0, "int4 tensor": 9.0, "int4 row": 0.8},
    **{"int4 group 128": 0.5, "NF4 block 64": 0.2, "int4 group 32": 0.3},
}


def test_e1_holds_and_says_what_is_real_and_what_is_noise(worded):
    judged = verdict(ClaimPerplexity, worded, scored(**AS_EXPECTED))
    assert judged.outcome is Outcome.HOLDS
    assert "noise: int8 row" in judged.measured
    assert "real: int8 tensor, int4 tensor, int4 row" in judged.measured
    assert "a protocol, a text" in judged.measured
    assert judged.by_scheme["int8 row"]["to the reference"].startswith("1")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"int8 row": 0.05}, Outcome.DOES_NOT_HOLD),
        ({"int4 tensor": 1.5}, Outcome.DOES_NOT_HOLD),
        ({"NF4 block 64": 0.6}, Outcome.DOES_NOT_HOLD),
        ({"int4 row": 0.5}, Outcome.INCONCLUSIVE),
        ({"int4 row": 0.5, "int8 row": 0.3}, Outcome.DOES_NOT_HOLD),
    ],
)
def test_e1_does_not_hold_where_a_part_does_not(worded, changes, outcome):
    assert verdict(ClaimPerplexity, worded, scored(**{**AS_EXPECTED, **changes})).outcome is outcome


def test_a_ratio_of_perplexities_covers_what_it_should():
    """Losses that drift over blocks: of 200 intervals of 95 %, at least 180 cover (chance of fewer: 1 in 200)."""
    generator, covered = random.Random(7), 0
    for _ in range(200):
        drift = [generator.gauss(0, 0.1) for _ in range(32)]
        differences = [0.01 + drift[i // 64] + generator.gauss(0, 0.1) for i in range(2_048)]
        interval = ratio_of(differences, [0.0] * len(differences))
        covered += interval.low <= 2.718281828**0.01 <= interval.high
    assert covered >= 180


def test_e1_names_the_scheme_and_the_layer_where_numbers_ended(worded, monkeypatch):
    honest = quantizers.PackedTensor.dequantize

    def broken(self):
        weight = honest(self)
        return weight * float("nan") if weight.shape == (32, 48) else weight  # down_proj

    monkeypatch.setattr(quantizers.PackedTensor, "dequantize", broken)
    with pytest.raises(ValueError, match="int8 row: logits are not finite from layer 1 of 3 on"):
        run(ClaimPerplexity, worded, "int8 row")


def test_e1_wants_a_text_of_its_length(worded, tmp_path):
    (tmp_path / "short.txt").write_text("only a few words")
    worded.settings = replace(worded.settings, corpus=str(tmp_path / "short.txt"))
    with pytest.raises(ValueError, match=r"corpus short.txt has 4 tokens, and 512 are scored"):
        run(ClaimPerplexity, worded, REFERENCE)


def test_e1_needs_a_tokenizer(lab, tmp_path):
    (tmp_path / "short.txt").write_text("only a few words")
    lab.settings = replace(lab.settings, corpus=str(tmp_path / "short.txt"))
    assert "no tokenizer" in run(ClaimPerplexity, lab, REFERENCE).validity.reason


class FakePeer:
    """llama.cpp that has the reference's own logits, times a factor."""

    factor = 1.0

    def __init__(self, gguf, *, max_tokens, num_threads, all_logits):
        assert all_logits
        assert max_tokens == 256

    def all_logits(self, tokens):
        return self.model(torch.tensor([tokens])).logits[0] * self.factor


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (2.0, False)])
def test_e1_holds_llama_cpp_against_our_own(worded, monkeypatch, tmp_path, factor, is_right):
    monkeypatch.setattr(sources, "gguf_of", lambda _model: tmp_path / "a.gguf")
    monkeypatch.setattr(bench_perplexity.llama_cpp, "is_installed", lambda: True)
    model = loading.load_float32(worded.settings).model
    monkeypatch.setattr(
        bench_perplexity.llama_cpp, "LlamaCpp", type("Peer", (FakePeer,), {"factor": factor, "model": model})
    )
    if not is_right:
        with pytest.raises(AssertionError, match="our perplexity"):
            run(ClaimPerplexity, worded, "llama.cpp")
        return
    own, peer = (run(ClaimPerplexity, worded, name) for name in (REFERENCE, "llama.cpp"))
    assert peer.counters["perplexity"] == pytest.approx(own.counters["perplexity"], rel=1e-5)


# --- E2


def test_e2_asks_every_question_and_keeps_the_answers(worded, tmp_path):
    questions = tmp_path / "mine.jsonl"
    questions.write_text(
        '{"question": "How many?", "answers": ["w"]}\n{"question": "Who then?", "answers": ["W1"]}'
    )
    worded.settings = replace(worded.settings, questions=str(questions))
    found = run(ClaimBattery, worded, REFERENCE, GREEDY)
    answers, right = (json.loads(found.notes[name]) for name in ("answers", "right"))
    assert len(answers) == len(right) == 2
    assert right[0] is False, "w is a part of a word, and none by itself"
    assert found.counters["num_right"] + found.counters["num_wrong"] == 2


def test_e2_has_no_penalty_where_the_model_comes_with_none(worded, monkeypatch):
    assert "no repetition penalty" in run(ClaimBattery, worded, REFERENCE, PENALISED).validity.reason
    model = loading.load_float32(worded.settings).model
    monkeypatch.setattr(model.generation_config, "repetition_penalty", 1.5)
    penalised, greedy = (run(ClaimBattery, worded, REFERENCE, decoding) for decoding in (PENALISED, GREEDY))
    assert penalised.notes["answers"] != greedy.notes["answers"]


def test_e2_needs_a_chat_template(worded):
    loading.load_float32(worded.settings).tokenizer.chat_template = None
    assert "no chat template" in run(ClaimBattery, worded, REFERENCE, GREEDY).validity.reason


def test_e2_sees_answers_that_are_too_long(worded, monkeypatch):
    monkeypatch.setattr(bench_battery, "greedy_answers", lambda *_a, **_o: [[1] * 99] * 16)
    with pytest.raises(AssertionError, match="an answer of 99 tokens"):
        run(ClaimBattery, worded, REFERENCE, GREEDY)


def answered(decoding=GREEDY, **num_right):
    """E2 as measured: so many of sixteen right, the first ones."""
    found = {}
    for scheme in (REFERENCE, *bench_battery.SCHEMES):
        right = [index < num_right.get(scheme, 13) for index in range(16)]
        notes = {"right": json.dumps(right), "answers": "[]"}
        found[(scheme, decoding)] = Measurement("E2", {"scheme": scheme, "decoding": decoding}, notes=notes)
    return found


NF4, GROUPS = (scheme.name for scheme in ALIKE)


def test_e2_holds_where_a_collapse_is_all_that_can_be_told(worded):
    judged = verdict(ClaimBattery, worded, answered(**{"int4 tensor": 0, NF4: 12, GROUPS: 13}))
    assert judged.outcome is Outcome.HOLDS
    assert "12 NF4 block 64 and 13 int4 group 128, 0 lost, 1 won: noise (p = 1)" in judged.measured
    assert "13 the reference and 0 int4 tensor, 13 lost, 0 won: real (p = 0.00024)" in judged.measured
    assert judged.by_scheme["int4 tensor"]["battery, greedy"].startswith("0 of 16 [0.00, 0.19] real")


@pytest.mark.parametrize("changes", [{"int4 tensor": 12}, {"int4 tensor": 0, NF4: 3}])
def test_e2_does_not_hold_where_it_tells_otherwise(worded, changes):
    assert verdict(ClaimBattery, worded, answered(**changes)).outcome is Outcome.DOES_NOT_HOLD


def test_e2_decides_nothing_where_a_collapse_could_not_show(worded):
    few = answered(**{REFERENCE: 5, "int4 tensor": 0, NF4: 5, GROUPS: 5})
    assert verdict(ClaimBattery, worded, few).outcome is Outcome.INCONCLUSIVE
    only = {case: each for case, each in answered().items() if case[0] == REFERENCE}
    assert verdict(ClaimBattery, worded, only).outcome is Outcome.INCONCLUSIVE


def test_e2_shows_both_decodings_where_there_are_two(worded):
    found = answered(**{"int4 tensor": 0}) | answered(PENALISED, **{"int4 tensor": 0, NF4: 14})
    judged = verdict(ClaimBattery, worded, found)
    assert "stock penalty, of 16: 14 NF4 block 64" in judged.measured
    assert set(judged.by_scheme[REFERENCE]) == {"battery, greedy", "battery, stock penalty"}


def test_flips_are_counted_either_way():
    assert told_apart([True, True, False, True], [False, True, True, True]) == "1 lost, 1 won: noise (p = 1)"


# --- E3


def test_e3_asks_every_scheme_at_every_position(worded):
    found = run_all(ClaimAgreement, worded)
    reference = found[(REFERENCE,)]
    assert reference.counters["num_same"] + reference.counters["num_different"] == 144
    assert reference.counters["num_different"] == 0
    assert abs(reference.counters["mean_kl"]) < 1e-12
    for name in bench_agreement.SCHEMES:
        assert (
            len(json.loads(found[(name,)].notes["kl_nats"])) == len(json.loads(found[(name,)].notes["same"])) == 144
        )
        assert found[(name,)].counters["mean_kl"] > 0


def test_e3_sees_a_reference_that_is_another(worded, monkeypatch):
    honest = bench_agreement.greedy_answers

    def last_is_off(*arguments, **options):
        return [[*answer[:-1], (answer[-1] + 1) % 640] for answer in honest(*arguments, **options)]

    monkeypatch.setattr(bench_agreement, "greedy_answers", last_is_off)
    with pytest.raises(AssertionError, match="logits below the choice of decoding it alone"):
        run(ClaimAgreement, worded, REFERENCE)


def test_e3_sees_a_divergence_below_zero(worded, monkeypatch):
    honest = ClaimAgreement.run
    monkeypatch.setattr(
        ClaimAgreement, "run", lambda self, scheme: (honest(self, scheme)[0], -honest(self, scheme)[1])
    )
    with pytest.raises(AssertionError, match=r"a divergence of -"):
        run(ClaimAgreement, worded, "int8 row")


def agreed(**num_same):
    found = {}
    for name in (REFERENCE, *bench_agreement.SCHEMES):
        same = num_same.get(name, 144)
        agreed_on = [1] * same + [0] * (144 - same)
        notes = {"kl_nats": json.dumps([0.1] * 144), "same": json.dumps(agreed_on)}
        counters = {"num_same": same, "num_different": 144 - same}
        found[(name,)] = Measurement("E3", {"scheme": name}, counters=counters, notes=notes)
    return found


FEWER = {"int4 tensor": 1, "int4 row": 74, "int4 group 128": 71, "NF4 block 64": 91}


@pytest.mark.parametrize(
    ("same", "outcome"),
    [
        ({**FEWER, "int8 row": 142}, Outcome.HOLDS),
        ({**FEWER, "int8 row": 132}, Outcome.INCONCLUSIVE),
        ({**FEWER, "int8 row": 100}, Outcome.DOES_NOT_HOLD),
        ({**FEWER, "int8 row": 142, "int4 row": 143}, Outcome.INCONCLUSIVE),
        ({**FEWER, "int8 row": 136, "int4 row": 144}, Outcome.DOES_NOT_HOLD),
    ],
)
def test_e3_wants_int8_to_agree_nearly_always_and_fewer_bits_less(worded, same, outcome):
    judged = verdict(ClaimAgreement, worded, agreed(**same))
    assert judged.outcome is outcome
    assert judged.by_scheme["NF4 block 64"]["agreement"] == "91 of 144 [0.55, 0.71]"


# --- what none of them means anything for


@pytest.mark.parametrize(
    ("claim", "case"),
    [(ClaimPerplexity, (REFERENCE,)), (ClaimBattery, (REFERENCE, GREEDY)), (ClaimAgreement, (REFERENCE,))],
)
def test_random_weights_have_no_quality(worded, monkeypatch, claim, case):
    honest = loading.load_float32

    def unlearned(settings):
        loaded = honest(settings)
        return replace(loaded, identity=replace(loaded.identity, is_random=True))

    monkeypatch.setattr(loading, "load_float32", unlearned)
    found = run(claim, worded, *case)
    assert found.validity == Validity("not-applicable", found.validity.reason)
    assert "random weights" in found.validity.reason


def test_the_protocols_are_the_ledgers():
    assert bench_perplexity.PROTOCOL.num_scored == 2_044
    assert bench_agreement.NUM_PROMPTS * bench_agreement.NUM_TOKENS == 144
    assert "llama_cpp" not in sys.modules or bench_perplexity.llama_cpp.is_installed()
