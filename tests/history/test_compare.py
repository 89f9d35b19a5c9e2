"""Two records held against each other: ratios of like cases, and reasons for the others."""

from dataclasses import replace

import pytest

from bench_utils.history.compare import compare
from bench_utils.history.entries import Figure, ModelEntry, PlacementEntry, SourceState, VerdictEntry
from bench_utils.measure.measurement import Bound, Lap, Validity
from tests.history.support import MEASURED, machine, record

KEY = "A2[cached-48]"


def verdict(outcome="holds", **figures):
    found = {name: Figure(value, value - 1, value + 1) for name, value in figures.items()}
    return VerdictEntry("the cache", "physical", "9x", outcome, figures=found)


def side(measurement=MEASURED, verdicts=None, **changes):
    held = record(**changes)
    if measurement is not None:
        held.add(measurement)
    held.verdicts = verdicts or {}
    return held


def only_case(a, b):
    (claim,) = compare(a, b).claims
    (case,) = claim.cases
    return case


def slower(factor, **changes):
    """Twice the time, say, with what bounds it changed as told."""
    laps = {
        name: Lap(tuple(s * factor for s in lap.samples_s), lap.bound and replace(lap.bound, share_of_peak=0.3))
        for name, lap in MEASURED.laps.items()
    }
    return replace(MEASURED, samples_s=tuple(s * factor for s in MEASURED.samples_s), laps=laps, **changes)


def test_a_like_case_has_its_ratio_and_what_the_rooflines_predict_of_it():
    found = only_case(side(), side(slower(2, bound=Bound("overhead", 0.14, None))))
    assert found.unlike == ""
    assert [pair.name for pair in found.times] == ["", "prefill", "decode"]
    whole, prefill, decode = found.times
    assert whole.b_over_a.value == pytest.approx(2)
    assert (whole.b_over_a.low, whole.b_over_a.high) == pytest.approx((1, 4))  # the extremes of three samples
    # At its limit A takes 0.7 x 0.15 s and B 0.14 x 0.3 s: B's machine is faster, and used a fifth as well.
    assert whole.predicted == pytest.approx(0.4)
    assert (whole.used_a, whole.used_b) == (0.7, 0.14)
    assert (prefill.used_a, prefill.used_b) == (0.6, 0.3)
    assert (decode.predicted, decode.used_a) == (None, None)


def test_counters_that_differ_are_named_and_equal_ones_counted():
    found = only_case(side(), side(replace(MEASURED, counters={"tokens_fed": 88, "other": 1})))
    assert [(pair.name, pair.a, pair.b) for pair in found.counters] == [("tokens_fed", 87, 88)]
    assert only_case(side(), side()).num_equal_counters == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": ModelEntry("other", "r1")}, "model tiny (r1) against other (r1)"),
        ({"model": ModelEntry("tiny", "r2")}, "model tiny (r1) against tiny (r2)"),
        ({"placement": PlacementEntry("cpu", "bfloat16")}, "float32 against bfloat16"),
        ({"inputs": {"corpus": "c0ffee"}}, "the user's own files differ"),
        ({"profile": "quick"}, "full profile against quick"),
    ],
)
def test_unlike_runs_are_named_and_no_case_of_theirs_is_called(changes, words):
    found = compare(side(), side(slower(2), **changes))
    assert found.unlike == (words,)
    (case,) = found.claims[0].cases
    assert (case.unlike, case.times, case.counters) == (words, (), ())


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": machine(name="other", id="def")},
        {"machine": machine(num_threads=1)},
        {"placement": PlacementEntry("cuda", "float32")},
    ],
)
def test_another_machine_or_device_is_what_is_compared(changes):
    assert only_case(side(), side(**changes)).times


@pytest.mark.parametrize(
    ("measurement", "words"),
    [
        (replace(MEASURED, version="another"), "another version"),
        (replace(MEASURED, validity=Validity("out-of-memory", "no room")), "out-of-memory in B"),
        (None, "not in B"),
    ],
)
def test_an_unlike_case_says_why(measurement, words):
    assert words in only_case(side(), side(measurement)).unlike


def test_a_prediction_needs_the_same_limits_on_both_sides():
    found = only_case(side(), side(slower(2, bound=Bound("compute", 0.02, 0.8))))
    assert found.times[0].predicted is None


def test_laps_of_one_run_are_one_sample():
    """Three runs of three laps each: the extremes of three medians, not of nine laps."""
    laps = {"step": Lap((1.0, 2.0, 9.0, 1.0, 3.0, 9.0, 1.0, 4.0, 9.0))}
    measured = replace(MEASURED, laps=laps, runs_per_sample=1)
    (step,) = [pair for pair in only_case(side(measured), side(measured)).times if pair.name]
    assert (step.a_s.value, step.a_s.low, step.a_s.high) == (3.0, 2.0, 4.0)


def test_what_one_side_lacks_is_named():
    other = replace(MEASURED, samples_s=(), laps={"prefill": Lap((0.05,))}, counters={"other": 1})
    assert only_case(side(), side(other)).one_sided == (
        "lap decode in A only",
        "tokens_fed in A only",
        "other in B only",
        "timed in A only",
    )


def test_an_unknown_version_is_the_same_only_in_the_same_clean_commit():
    assert only_case(side(), side()).times
    for source in (SourceState("other", False), SourceState("c0ffee", True, "x"), SourceState(None, None)):
        assert "an unknown one" in only_case(side(source=source), side(source=SourceState("c0ffee", False))).unlike
    known = replace(MEASURED, version="v")
    assert only_case(side(known), side(known, source=SourceState("other", False))).times


def test_a_case_that_only_b_has_is_not_in_a():
    assert only_case(side(None), side()).unlike == "not in A"


def test_verdicts_that_differ_come_first():
    a = side(None, {"A1": verdict(), "B1": verdict(), "C1": verdict()})
    b = side(None, {"A1": verdict(), "B1": verdict("does not hold here"), "D1": verdict()})
    found = compare(a, b)
    assert [(claim.id, claim.differs) for claim in found.claims] == [
        ("B1", True),
        ("A1", False),
        ("C1", False),
        ("D1", False),
    ]


def test_figures_of_one_name_stand_side_by_side():
    found = compare(side(None, {"A2": verdict(x=2, y=3)}), side(None, {"A2": verdict(x=5, z=1)})).claims[0].figures
    assert {name: (one.value, other.value) for name, (one, other) in found.items()} == {"x": (2, 5)}


# --- against what a text states


def stated(model="Qwen2.5-0.5B-Instruct"):
    told = replace(
        MEASURED, samples_s=(), laps={"prefill": Lap((1.0224,))}, counters={"tokens_fed": 87}, bound=None
    )
    held = side(told, {"A2": verdict("stated", x=9)}, origin="stated", model=ModelEntry(model, "not stated"))
    return replace(held, placement=PlacementEntry("cuda", "not stated"))


def test_a_model_that_only_sounds_like_the_chapters_is_another():
    assert compare(side(model=ModelEntry("me/qwen2.5-0.5b-distilled", "r")), stated()).unlike


@pytest.mark.parametrize("name", ["qwen2.5-0.5b-shape", "Qwen/Qwen2.5-0.5B-Instruct"])
def test_the_chapters_model_is_compared_with_what_the_chapter_states(name):
    measured = side(replace(MEASURED, version="v"), {"A2": verdict(x=2)}, model=ModelEntry(name, "r"))
    found = compare(measured, stated())
    assert not found.unlike
    (claim,) = found.claims
    assert not claim.differs
    (pair,) = claim.cases[0].times
    assert (pair.name, pair.b_s.value, pair.predicted) == ("prefill", 1.0224, None)


def test_another_model_is_not():
    assert compare(side(), stated()).unlike == ("model tiny (r1) against Qwen2.5-0.5B-Instruct (not stated)",)
