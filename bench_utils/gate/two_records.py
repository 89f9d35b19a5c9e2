"""Two run records of one machine, where both sides cannot be built: counters exactly, times as far as they tell.

A record's times are those of one process at one time: they know neither what another process of the same code would
take, nor what the machine did meanwhile. How much that is shows in the other cases, of which most did not change.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench_utils.claim import Claim
from bench_utils.discovery import find_claims
from bench_utils.gate import acceptance, findings, stages
from bench_utils.gate.counting import CaseCount, ClaimFacts, Suite
from bench_utils.gate.findings import VERDICT, Counts, Finding, Weight
from bench_utils.gate.options import Options
from bench_utils.gate.record import GateRecord
from bench_utils.gate.refusal import BROKEN, UNDECIDED, GateRefusal
from bench_utils.gate.rule import Estimate, Judged, Rule, judge
from bench_utils.history import records
from bench_utils.history.compare import compare
from bench_utils.history.entries import RunRecord
from bench_utils.measure import statistics

# Fewer cases do not show how far two runs of the same code lie apart.
_FEWEST_CASES = 8
# From the median of absolute deviations to a standard deviation, where they are normal.
_NORMAL = 1.4826
_WIDTH_95 = 2 * 1.96
_FEW = 3


def gate(base: Path, head: Path, options: Options) -> GateRecord:
    """Judge two files. Which counters are costs is asked of the claims in the folder at hand.

    Raises:
        GateRefusal, RecordError: what cannot be read or compared.
    """
    claims, broken = find_claims(Path(options.claims))
    if broken:
        told = "; ".join(f"{module.module}: {module.error}" for module in broken)
        raise GateRefusal("not-importable", f"which counters are costs is not known: {told}", BROKEN)
    one, other = (records.read(path) for path in (base, head))
    stages.demand_known(options.select, [*one.cases, *other.cases])
    return hold(_chosen(one, options), _chosen(other, options), {claim.id: claim for claim in claims}, options)


def hold(base: RunRecord, head: RunRecord, claims: Mapping[str, type[Claim]], options: Options) -> GateRecord:
    """Hold two records' cases against each other; `claims` say which counters may not rise, and what matters.

    Raises:
        GateRefusal: they are of two machines, or of other cases, and what differs.
    """
    _demand_alike(base, head)
    one, other = _counts(base, claims), _counts(head, claims)
    num_compared = findings.num_compared(one, other)
    found = GateRecord(
        kind="gate",
        started_at=records.now_utc(),
        base=base.source,
        head=head.source,
        model=head.model.name,
        profile=head.profile,
        device=head.placement.device,
        dtype=head.placement.dtype,
        machine=head.machine,
        num_compared=num_compared,
        num_skipped=len(one.cases) - num_compared,
    )
    both = [side.cases for side in (base, head)]
    timed = [key for key in findings.comparable(one, other) if all(cases[key].samples_s for cases in both)]
    found.min_effects = {key: stages.min_effect([other.suite], key, options) for key in timed}
    found.times = _times(found.min_effects, base, head, options.rule)
    weighed = [_unsure(finding, head) for finding in findings.of_cases(one, other)]
    weighed += [*_versions(base, head), *findings.of_times(found.times)]
    found.findings = acceptance.accept(weighed, options.accepted)
    found.verdict, found.status = findings.verdict_of(found.findings)
    return found


def _chosen(found: RunRecord, options: Options) -> RunRecord:
    cases = {key: each for key, each in found.cases.items() if options.wants(key)}
    claims = {each.claim for each in cases.values()}
    verdicts = {claim_id: each for claim_id, each in found.verdicts.items() if claim_id in claims}
    return replace(found, cases=cases, verdicts=verdicts)


def _demand_alike(base: RunRecord, head: RunRecord) -> None:
    if not base.cases or not head.cases:
        raise GateRefusal("no-common-case", "there is no such case in one of the records", UNDECIDED)
    before, after = _conditions(base), _conditions(head)
    unlike = [f"{name}: {before[name]} against {after[name]}" for name in before if before[name] != after[name]]
    unlike += compare(base, head).unlike
    for name, one, other in (("base", base, head), ("head", head, base)):
        alone = sorted({*one.cases} - {*other.cases})
        if alone:
            more = f" and {len(alone) - _FEW} more" if len(alone) > _FEW else ""
            unlike.append(f"only in {name}: {', '.join(alone[:_FEW])}{more}")
    if unlike:
        message = f"these are no two runs of the same cases on one machine: {'; '.join(dict.fromkeys(unlike))}"
        raise GateRefusal("unlike-records", message)


def _conditions(found: RunRecord) -> dict[str, object]:
    return {
        "finished": found.is_finished,
        "origin": found.origin,
        "machine": f"{found.machine.name} ({found.machine.id})",
        "threads": found.machine.num_threads,
        "device": found.placement.device,
    }


def _counts(found: RunRecord, known: Mapping[str, type[Claim]]) -> Counts:
    """A record as if it had just been counted."""
    claims: dict[str, ClaimFacts] = {}
    for key, each in found.cases.items():
        claim, before = known.get(each.claim), claims.get(each.claim)
        costs = tuple(claim.tracked) if claim else ()
        min_effect = claim.min_effect if claim else None
        cases = (*(before.cases if before else ()), key)
        claims[each.claim] = ClaimFacts(each.claim, each.version, True, costs, min_effect, cases)
    suite = Suite(claims, {}, found.placement.device, found.placement.dtype)
    cases_counted = {
        key: CaseCount(each.validity.code, each.validity.reason, each.counters) for key, each in found.cases.items()
    }
    verdicts = {claim_id: (each.outcome, each.reason) for claim_id, each in found.verdicts.items()}
    return Counts(suite, cases_counted, verdicts)


def _unsure(finding: Finding, head: RunRecord) -> Finding:
    """A physical claim's verdict rests on times of one process a side: it alone is no regression."""
    is_physical = finding.what == VERDICT and head.verdicts[finding.key].kind != "exact"
    return replace(finding, weight=Weight.UNDECIDED) if is_physical and finding.blocks else finding


def _versions(base: RunRecord, head: RunRecord) -> Iterator[Finding]:
    for name, before in base.machine.versions.items():
        after = head.machine.versions.get(name)
        if after != before:
            yield Finding(name, "version", Weight.NOTED, f"{before} -> {after}")


def _times(min_effects: Mapping[str, float], base: RunRecord, head: RunRecord, rule: Rule) -> dict[str, Judged]:
    if len(min_effects) < _FEWEST_CASES:
        reason = f"of {len(min_effects)} timed cases one cannot tell how far two runs of the same code lie apart"
        return {key: replace(judged, reason=reason) for key, judged in judge({}, min_effects, rule.level).items()}
    ratios = {key: statistics.ratio(head.cases[key].samples_s, base.cases[key].samples_s) for key in min_effects}
    between = _NORMAL * median(abs(math.log(ratio.value)) for ratio in ratios.values())
    estimates = {}
    for key, ratio in ratios.items():
        within = math.log(ratio.high / ratio.low) / _WIDTH_95
        error = max(math.hypot(between, within), 1e-9)  # a record against itself
        estimates[key] = Estimate(math.log(ratio.value), error, len(ratios) - 1, 1)
    return judge(estimates, min_effects, rule.level)
