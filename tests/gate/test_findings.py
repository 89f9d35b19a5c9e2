"""What differs between two sides' counts, how much it weighs, and what may be accepted."""

import pytest

from bench_utils.gate import acceptance, counting, findings, recount
from bench_utils.gate.counting import CaseCount, Suite
from bench_utils.gate.findings import Counts, Finding, Weight
from bench_utils.gate.refusal import GateRefusal
from bench_utils.gate.rule import Judged, State


def counts(cases, *, version="1", costs=("bytes",), verdicts=None, is_timed=True):
    """One side, by case: counters, or the code of what is not ok."""
    counted = {
        key: CaseCount(value, f"a reason for {value}") if isinstance(value, str) else CaseCount("ok", "", value)
        for key, value in cases.items()
    }
    claim = counting.ClaimFacts("A", version, is_timed, costs, None, tuple(cases))
    return Counts(Suite({"A": claim}, {}, "cpu", "float32"), counted, verdicts or {})


def weights(base, head):
    return {(each.key, each.what): each.weight for each in findings.of_cases(base, head)}


def test_a_cost_that_rises_by_one_blocks_and_one_that_falls_is_better():
    base = counts({"A[1]": {"bytes": 10**15, "dispatched_kernels": 7}})
    head = counts({"A[1]": {"bytes": 10**15 + 1, "dispatched_kernels": 6}})
    assert weights(base, head) == {
        ("A[1]", "bytes"): Weight.REGRESSION,
        ("A[1]", "dispatched_kernels"): Weight.BETTER,
    }
    (finding, _) = findings.of_cases(base, head)
    assert finding.told.startswith("1,000,000,000,000,000 -> 1,000,000,000,000,001 (+1.11e-13 %)")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (1.0120573864944873, 1.0084441328525406, "1.01206 -> 1.00844 (-0.357 %)"),
        (0.1, 0.1 + 2**-55, "0.1 -> 0.10000000000000003 (+2.22e-14 %)"),
        (1_234_567, 1_234_568, "1,234,567 -> 1,234,568 (+8.1e-05 %)"),
    ],
)
def test_counts_are_told_to_the_last_digit_and_quotients_to_six_unless_they_would_look_alike(before, after, told):
    base, head = (counts({"A[1]": {"amount": value}}) for value in (before, after))
    (finding,) = findings.of_cases(base, head)
    assert finding.told == told


def test_a_counter_that_is_no_cost_is_noted():
    base, head = counts({"A[1]": {"perplexity": 20.0}}), counts({"A[1]": {"perplexity": 21.0}})
    assert weights(base, head) == {("A[1]", "perplexity"): Weight.NOTED}


def test_a_cost_that_is_no_longer_counted_is_broken():
    assert weights(counts({"A[1]": {"bytes": 1}}), counts({"A[1]": {}})) == {("A[1]", "bytes"): Weight.BROKEN}
    assert weights(counts({"A[1]": {}}), counts({"A[1]": {"bytes": 1}})) == {("A[1]", "bytes"): Weight.NOTED}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, "failed", ("fails", Weight.REGRESSION)),
        ({}, "error", ("fails", Weight.REGRESSION)),
        ({}, "out-of-memory", ("fails", Weight.REGRESSION)),
        ("failed", "failed", ("fails", Weight.BROKEN)),
        ("error", {}, ("fails", Weight.BETTER)),
        ({}, "not-applicable", ("vanished", Weight.BROKEN)),
        ("not-applicable", {}, ("new", Weight.NOTED)),
        ("not-applicable", "not-applicable", None),
        ("not-applicable", "failed", ("fails", Weight.REGRESSION)),
        ({}, "above-roofline", ("vanished", Weight.BROKEN)),
        ("failed", "not-applicable", ("vanished", Weight.BROKEN)),
        ("failed", "error", ("fails", Weight.BROKEN)),
    ],
)
def test_how_a_case_that_is_not_ok_weighs(before, after, expected):
    found = weights(counts({"A[0]": {}, "A[1]": before}), counts({"A[0]": {}, "A[1]": after}))
    assert found == ({("A[1]", expected[0]): expected[1]} if expected else {})


def test_where_nothing_ran_on_both_sides_nothing_passes():
    base = counts({"A[1]": "not-applicable"})
    (finding,) = findings.of_cases(base, base)
    assert finding.weight is Weight.UNDECIDED
    assert "no case ran on both sides" in finding.told


def test_a_new_case_that_fails_blocks():
    base, head = counts({"A[1]": {}}), counts({"A[1]": {}, "A[2]": "failed"})
    assert weights(base, head) == {("A[2]", "fails"): Weight.REGRESSION}


def test_another_workload_is_compared_in_nothing():
    base, head = counts({"A[1]": {"bytes": 1}}), counts({"A[1]": {"bytes": 9}}, version="2")
    assert weights(base, head) == {("A[1]", "workload"): Weight.UNDECIDED}
    assert findings.comparable(base, head) == []


def test_a_verdict_that_turns_against_the_claim_blocks():
    base = counts({"A[1]": {}}, verdicts={"A": ("holds", "")})
    head = counts({"A[1]": {}}, verdicts={"A": ("does not hold here", "30 is not 29")})
    assert weights(base, head) == {("A", "verdict"): Weight.REGRESSION}
    assert weights(head, base) == {("A", "verdict"): Weight.BETTER}
    assert weights(head, head) == {}
    unsure = counts({"A[1]": {}}, verdicts={"A": ("inconclusive", "")})
    assert weights(base, unsure) == {("A", "verdict"): Weight.NOTED}


def test_cases_of_one_side_alone_are_named():
    one, two = counts({"A[1]": {}}).suite, counts({"A[1]": {}, "A[2]": {}}).suite
    (new,) = findings.of_suites(one, two, ["A[1]", "A[2]"])
    assert (new.what, new.weight) == ("new", Weight.NOTED)
    (vanished,) = findings.of_suites(two, one, ["A[1]", "A[2]"])
    assert (vanished.what, vanished.weight) == ("vanished", Weight.BROKEN)
    assert list(findings.of_suites(two, one, ["A[1]"])) == [], "what was not chosen is no finding"


def test_the_worst_that_is_not_accepted_decides():
    regression, broken, unsure, better = (
        Finding("A[1]", "time", weight, "")
        for weight in (Weight.REGRESSION, Weight.BROKEN, Weight.UNDECIDED, Weight.BETTER)
    )
    assert findings.verdict_of([better, unsure, broken, regression]) == ("regression", 1)
    assert findings.verdict_of([better, unsure, broken]) == ("broken", 3)
    assert findings.verdict_of([better, unsure]) == ("cannot tell", 4)
    assert findings.verdict_of([better]) == ("pass", 0)
    assert findings.verdict_of([]) == ("pass", 0)


def test_every_state_of_a_time_but_as_fast_is_a_finding():
    judged = {state.name: Judged(state) for state in State}
    found = {each.key: each.weight for each in findings.of_times(judged)}
    assert found == {
        "SLOWER": Weight.REGRESSION,
        "FASTER": Weight.BETTER,
        "UNDECIDED": Weight.UNDECIDED,
        "UNMEASURED": Weight.UNDECIDED,
    }


def test_an_acceptance_names_cases_and_what_may_differ():
    bytes_up = Finding("A2[cached-48]", "bytes", Weight.REGRESSION, "1 -> 2")
    slower = Finding("A2[cached-48]", "time", Weight.REGRESSION, "slower")
    accepted = acceptance.parse("A2[cached-*] bytes: rows are aligned")
    marked = acceptance.accept([bytes_up, slower], [accepted])
    assert [each.accepted for each in marked] == ["rows are aligned", ""]
    assert [each.blocks for each in marked] == [False, True]
    whole_claim = acceptance.accept([bytes_up, slower], [acceptance.parse("A2 *: rewritten")])
    assert not any(each.blocks for each in whole_claim)


def test_an_acceptance_of_another_claim_covers_nothing_and_is_told():
    found = Finding("A21[1]", "bytes", Weight.REGRESSION, "1 -> 2")
    kept, unused = acceptance.accept([found], [acceptance.parse("A2 bytes: why")])
    assert kept.blocks
    assert unused.weight is Weight.NOTED
    assert "nothing differs there" in unused.told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A2 time: https://example.org/12", ("A2", "time", "https://example.org/12")),
        ("A2 bytes: fix: rows", ("A2", "bytes", "fix: rows")),
        ("T1[a:b] time : why", ("T1[a:b]", "time", "why")),
        (
            "F3[temperature 0.7, top 4-1] dispatched_macs: why",
            ("F3[temperature 0.7, top 4-1]", "dispatched_macs", "why"),
        ),
    ],
)
def test_reasons_and_cases_may_have_colons_and_spaces(text, expected):
    found = acceptance.parse(text)
    assert (found.cases, found.what, found.reason) == expected


def test_two_acceptances_of_one_finding_are_both_used():
    found = Finding("A2[1]", "bytes", Weight.REGRESSION, "1 -> 2")
    accepted = [acceptance.parse("A2 bytes: why"), acceptance.parse("A2 *: too")]
    assert len(acceptance.accept([found], accepted)) == 1


@pytest.mark.parametrize("text", ["", "A2", "A2 bytes", "A2 bytes:", ": why"])
def test_an_acceptance_of_another_form_is_refused(text):
    with pytest.raises(GateRefusal, match="accepts nothing"):
        acceptance.parse(text)


def test_names_of_cases_have_spaces_commas_and_brackets():
    assert acceptance.names("F3[temperature 0.7, top 4-*]", "F3[temperature 0.7, top 4-1]")
    assert not acceptance.names("A3[c]", "A3[cached-16]")
    assert acceptance.names("*[cached-16]", "A3[cached-16]")


def step(before, after):
    return counts({"A[1]": {"bytes": before}}), counts({"A[1]": {"bytes": after}})


def test_a_difference_that_comes_out_alike_twice_stands():
    first = step(10, 12)
    (finding,) = findings.of_cases(*first)
    assert list(recount.confirmed([finding], first, step(10, 12))) == [finding]
    # Alone in its process a case may cost more on both sides, and differ by as much.
    assert list(recount.confirmed([finding], first, step(11, 13))) == [finding]


def test_a_counter_that_is_not_exact_is_noted():
    first = step(10, 12)
    (finding,) = findings.of_cases(*first)
    for again in (step(11, 11), step(13, 12)):
        (noted,) = recount.confirmed([finding], first, again)
        assert noted.weight is Weight.NOTED
        assert "not exact" in noted.told


def test_a_cost_that_rises_by_another_amount_when_counted_again_still_rose():
    first = step(10, 20)
    (finding,) = findings.of_cases(*first)
    (again,) = recount.confirmed([finding], first, step(10, 21))
    assert again.weight is Weight.REGRESSION
    assert "+11 when counted again" in again.told


def test_a_cost_that_rose_and_cannot_be_counted_again_does_not_pass():
    first = step(10, 20)
    (finding,) = findings.of_cases(*first)
    (again,) = recount.confirmed([finding], first, (counts({"A[1]": {"bytes": 10}}), counts({"A[1]": "error"})))
    assert again.weight is Weight.UNDECIDED


def test_a_new_case_that_fails_beside_a_regression_stays_what_it_is():
    base, head = step(10, 12)
    head = counts({"A[1]": {"bytes": 12}, "A[2]": "failed"})
    found = list(findings.of_cases(base, head))
    assert list(recount.confirmed(found, (base, head), step(10, 12))) == found


def test_a_failure_that_does_not_repeat_is_undecided():
    fine, failing = counts({"A[0]": {}, "A[1]": {}}), counts({"A[0]": {}, "A[1]": "failed"})
    first = fine, failing
    (finding,) = findings.of_cases(*first)
    (again,) = recount.confirmed([finding], first, (fine, fine))
    assert again.weight is Weight.UNDECIDED
    assert list(recount.confirmed([finding], first, first)) == [finding]
    in_another_way = fine, counts({"A[0]": {}, "A[1]": "error"})
    assert list(recount.confirmed([finding], first, in_another_way)) == [finding]


def test_all_cases_of_a_claim_are_counted_again_where_its_verdict_differs():
    found = [Finding("A", "verdict", Weight.REGRESSION, ""), Finding("B[2]", "bytes", Weight.NOTED, "")]
    assert recount.keys_to_recount(found, ["A[1]", "A[2]", "B[2]"]) == ["A[1]", "A[2]"]
