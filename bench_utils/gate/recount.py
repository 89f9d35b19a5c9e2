"""Counting again, in fresh processes, whatever differed: what does not come out alike twice is not exact."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench_utils.gate.counting import claim_id_of
from bench_utils.gate.findings import FAILS, VERDICT, Counts, Finding, Weight

_COUNTED_TWICE = (Weight.REGRESSION, Weight.BETTER)


def keys_to_recount(found: Sequence[Finding], keys: Sequence[str]) -> list[str]:
    """The cases behind findings that weigh something; all of a claim's where it is the verdict that differs."""
    doubtful = {finding.key for finding in found if finding.weight in _COUNTED_TWICE}
    return [key for key in keys if key in doubtful or claim_id_of(key) in doubtful]


def confirmed(
    found: Sequence[Finding], first: tuple[Counts, Counts], again: tuple[Counts, Counts]
) -> Iterator[Finding]:
    """The findings as two counts (base, head) of them say."""
    for finding in found:
        if finding.weight not in _COUNTED_TWICE:
            yield finding
        elif finding.what in (FAILS, VERDICT):
            states = [_state(finding, counts) for counts in (first, again)]
            weight = finding.weight if states[0] == states[1] else Weight.UNDECIDED
            yield (
                finding
                if weight is finding.weight
                else replace(finding, weight=weight, told=f"not again: {finding.told}")
            )
        else:
            yield _counter(finding, first, again)


def _state(finding: Finding, counts: tuple[Counts, Counts]) -> tuple[str | None, ...]:
    if finding.what == FAILS:
        return tuple(side.cases[finding.key].code for side in counts)
    return tuple(side.verdicts.get(finding.key, (None,))[0] for side in counts)


def _counter(finding: Finding, first: tuple[Counts, Counts], again: tuple[Counts, Counts]) -> Finding:
    step, second = (_difference(finding, counts) for counts in (first, again))
    if step == second:
        return finding
    told = f"not exact: {finding.told}, and counted again by {second:+,}"
    is_worse_twice = finding.weight is Weight.REGRESSION and second > 0
    return replace(finding, weight=Weight.UNDECIDED if is_worse_twice else Weight.NOTED, told=told)


def _difference(finding: Finding, counts: tuple[Counts, Counts]) -> float:
    base, head = (side.cases[finding.key].counters.get(finding.what, 0.0) for side in counts)
    return head - base
