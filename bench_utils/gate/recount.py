"""Counting again, in fresh processes, whatever differed: what does not come out alike twice is not exact."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench_utils.gate.counting import claim_id_of
from bench_utils.gate.findings import FAILS, VERDICT, Counts, Finding, Weight, amount, has_failed

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
        if finding.weight not in _COUNTED_TWICE or finding.key not in _counted_on_both(first):
            yield finding
        elif finding.what in (FAILS, VERDICT):
            is_alike = _state(finding, first) == _state(finding, again)
            unsure = replace(finding, weight=Weight.UNDECIDED, told=f"not so when run again: {finding.told}")
            yield finding if is_alike else unsure
        else:
            yield _counter(finding, first, again)


def _counted_on_both(counts: tuple[Counts, Counts]) -> set[str]:
    """A case that is new in head has nothing to be held against."""
    base, head = ({*side.cases, *side.verdicts} for side in counts)
    return base & head


def _state(finding: Finding, counts: tuple[Counts, Counts]) -> tuple[object, ...]:
    if finding.what == FAILS:
        return tuple(has_failed(side.cases[finding.key]) for side in counts)
    return tuple(side.verdicts.get(finding.key, (None,))[0] for side in counts)


def _counter(finding: Finding, first: tuple[Counts, Counts], again: tuple[Counts, Counts]) -> Finding:
    """A cost that goes the same way by as much again is exact; one that does not go that way again is none."""
    step, second = _difference(finding, first), _difference(finding, again)
    if step is None or second is None:
        return replace(finding, weight=Weight.UNDECIDED, told=f"{finding.told}, and could not be counted again")
    told = f"{finding.told}, and {amount(second, '+')} when counted again"
    if step * second <= 0:
        return replace(finding, weight=Weight.NOTED, told=f"not exact: {told}")
    return finding if step == second else replace(finding, told=told)


def _difference(finding: Finding, counts: tuple[Counts, Counts]) -> float | None:
    base, head = (side.cases[finding.key].counters.get(finding.what) for side in counts)
    return None if base is None or head is None else head - base
