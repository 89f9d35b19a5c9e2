"""Findings: what two sides' counts differ in, case by case, and how much each difference weighs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from bench_utils.gate.counting import DISPATCHED, CaseCount, Suite
from bench_utils.gate.refusal import BROKEN, UNDECIDED
from bench_utils.gate.rule import Judged, State
from bench_utils.verdict import Outcome


class Weight(Enum):
    """What a finding does to the verdict; the first three block, each with an exit status of its own."""

    REGRESSION = "regression"
    BROKEN = "broken"
    UNDECIDED = "cannot tell"
    BETTER = "better"
    NOTED = "noted"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it was: the case or claim, in what, and in words; `accepted`: why it may be so."""

    key: str
    what: str
    weight: Weight
    told: str
    accepted: str = ""

    @property
    def blocks(self) -> bool:
        """Whether the gate does not pass because of it."""
        return not self.accepted and self.weight in _STATUSES


# The exit status of each weight that blocks, the worst first.
_STATUSES = {Weight.REGRESSION: 1, Weight.BROKEN: BROKEN, Weight.UNDECIDED: UNDECIDED}
# What a finding may be about, beside the name of a counter.
TIME, FAILS, VERDICT, WORKLOAD = "time", "fails", "verdict", "workload"
VANISHED, NEW, MODULE = "vanished", "new", "module"
_FAILED = ("failed", "error", "out-of-memory")


@dataclass(frozen=True)
class Counts:
    """What counting gave for one side."""

    suite: Suite
    cases: Mapping[str, CaseCount]
    verdicts: Mapping[str, tuple[str, str]]


def of_suites(base: Suite, head: Suite, keys: Sequence[str]) -> Iterator[Finding]:
    """Cases that one side alone has, among those that were chosen, and modules that cannot be imported."""
    for module, error in head.broken.items():
        yield Finding(module, MODULE, Weight.BROKEN, f"cannot be imported in head: {error}")
    for module, error in base.broken.items():
        yield Finding(module, MODULE, Weight.NOTED, f"cannot be imported in base: {error}")
    in_base, in_head = set(base.keys), set(head.keys)
    for key in keys:
        if key not in in_head:
            yield Finding(key, VANISHED, Weight.BROKEN, "head has no such case: what it watched is watched no more")
        elif key not in in_base:
            yield Finding(key, NEW, Weight.NOTED, "base has no such case: nothing to compare with")


def of_cases(base: Counts, head: Counts) -> Iterator[Finding]:
    """What the cases of both sides, and their claims' verdicts, differ in."""
    if not num_compared(base, head):
        told = "no case ran on both sides, so nothing is known of this change"
        yield Finding("*", "nothing", Weight.UNDECIDED, told)
    for key, one in base.cases.items():
        other = head.cases[key]
        yield from _of_validity(key, one, other)
        if one.is_ok and other.is_ok:
            if is_same_workload(key, base.suite, head.suite):
                costs = {*base.suite.claim_of(key).costs, *head.suite.claim_of(key).costs, *DISPATCHED}
                yield from _of_counters(key, one.counters, other.counters, costs)
            else:
                told = "its claim's code changed: what it cost before says nothing of what it costs now"
                yield Finding(key, WORKLOAD, Weight.UNDECIDED, told)
    for key, other in head.cases.items():
        if key not in base.cases and has_failed(other):
            yield Finding(key, FAILS, Weight.REGRESSION, f"is new, and fails: {other.code}: {other.reason}")
    for claim_id, (outcome, _) in base.verdicts.items():
        if claim_id in head.verdicts:
            yield from _of_verdict(claim_id, outcome, *head.verdicts[claim_id])


def has_failed(counted: CaseCount) -> bool:
    """Whether an assert, or anything else, failed in a case."""
    return counted.code in _FAILED


def num_compared(base: Counts, head: Counts) -> int:
    """How many cases ran on both sides."""
    return sum(one.is_ok and head.cases[key].is_ok for key, one in base.cases.items())


def comparable(base: Counts, head: Counts) -> list[str]:
    """The cases whose times can be compared: timed, right on both sides, and of the same workload."""
    return [
        key
        for key, one in base.cases.items()
        if one.is_ok
        and head.cases[key].is_ok
        and head.suite.claim_of(key).is_timed
        and is_same_workload(key, base.suite, head.suite)
    ]


def verdict_of(found: Sequence[Finding]) -> tuple[str, int]:
    """The verdict and the exit status: the worst finding that is not accepted decides."""
    weights = {finding.weight for finding in found if finding.blocks}
    for weight, status in _STATUSES.items():
        if weight in weights:
            return weight.value, status
    return "pass", 0


def is_same_workload(key: str, base: Suite, head: Suite) -> bool:
    """Whether a case does the same on both sides, as far as its claim's own code says."""
    return base.claim_of(key).version == head.claim_of(key).version


def _of_validity(key: str, one: CaseCount, other: CaseCount) -> Iterator[Finding]:
    before, now = (f"{side.code}: {side.reason}" for side in (one, other))
    if has_failed(other):
        is_old = has_failed(one)
        told = f"fails in both, so nothing watches it: {now}" if is_old else f"fails in head alone: {now}"
        yield Finding(key, FAILS, Weight.BROKEN if is_old else Weight.REGRESSION, told)
    elif not other.is_ok and one.code != other.code:
        yield Finding(key, VANISHED, Weight.BROKEN, f"no longer measured in head ({now}; in base {one.code})")
    elif has_failed(one):
        yield Finding(key, FAILS, Weight.BETTER, f"failed in base: {before}")
    elif other.is_ok and not one.is_ok:
        yield Finding(key, NEW, Weight.NOTED, f"not measured in base: {before}")


def _of_counters(
    key: str, one: Mapping[str, float], other: Mapping[str, float], costs: set[str]
) -> Iterator[Finding]:
    for name in dict.fromkeys([*one, *other]):
        if name not in other:
            weight = Weight.BROKEN if name in costs else Weight.NOTED
            yield Finding(key, name, weight, "head no longer counts it")
        elif name not in one:
            yield Finding(key, name, Weight.NOTED, f"base does not count it; head has {amount(other[name])}")
        elif one[name] != other[name]:
            yield Finding(
                key, name, _weight_of(one[name], other[name], name in costs), _step(one[name], other[name])
            )


def _weight_of(before: float, after: float, is_cost: bool) -> Weight:
    if not is_cost:
        return Weight.NOTED
    return Weight.REGRESSION if after > before else Weight.BETTER


def _step(before: float, after: float) -> str:
    share = f" ({(after / before - 1) * 100:+.3g} %)" if before else ""
    one, other = amount(before), amount(after)
    return f"{before:,} -> {after:,}{share}" if one == other else f"{one} -> {other}{share}"


def amount(value: float, sign: str = "") -> str:
    """What is counted, to the last digit; a quotient, to six. `sign`: "+" shows it always."""
    return f"{value:{sign},}" if float(value).is_integer() else f"{value:{sign},.6g}"


def _of_verdict(claim_id: str, before: str, after: str, reason: str) -> Iterator[Finding]:
    bad = (Outcome.DOES_NOT_HOLD.value, Outcome.INVALID.value)
    if after in bad and before not in bad:
        yield Finding(claim_id, VERDICT, Weight.REGRESSION, f"{before} -> {after}: {reason}")
    elif before in bad and after not in bad:
        yield Finding(claim_id, VERDICT, Weight.BETTER, f"{before} -> {after}")
    elif before != after:
        yield Finding(claim_id, VERDICT, Weight.NOTED, f"{before} -> {after}: {reason}")


def of_times(judged: Mapping[str, Judged]) -> Iterator[Finding]:
    """What the times say, one finding for each case that is not simply as fast as before."""
    for key, each in judged.items():
        told = "; ".join(filter(None, (each.ratio_text, each.reason)))
        if each.state is State.SLOWER:
            yield Finding(key, TIME, Weight.REGRESSION, f"slower: {told}")
        elif each.state is State.FASTER:
            yield Finding(key, TIME, Weight.BETTER, f"faster: {told}")
        elif each.state is State.UNDECIDED:
            yield Finding(key, TIME, Weight.UNDECIDED, f"undecided after {each.num_pairs} pairs: {told}")
        elif each.state is State.UNMEASURED:
            yield Finding(key, TIME, Weight.UNDECIDED, f"not measured: {each.reason or 'no time was left for it'}")
        elif each.reason:
            yield Finding(key, TIME, Weight.NOTED, told)
