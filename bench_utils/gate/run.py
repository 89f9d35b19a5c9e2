"""One gate from revisions to findings: build both sides, count, time, and weigh what is not as it was."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from rich.console import Console

from bench_utils.gate import acceptance, findings, record, recount, repository, sides, stages
from bench_utils.gate.counting import Counter, Suite
from bench_utils.gate.findings import Counts, Finding, Weight
from bench_utils.gate.options import Options
from bench_utils.gate.pairs import PairTaker
from bench_utils.gate.record import GateRecord
from bench_utils.gate.repository import Repository, Revision
from bench_utils.gate.sides import Side


def gate(base: str, head: str | None, options: Options, console: Console) -> tuple[GateRecord, Path]:
    """Hold a revision against another one: `head`, the commit at hand where it is None, or '.', the working tree.

    Raises:
        GateRefusal: nothing can be judged, and why.
        KeyboardInterrupt: what was measured lies in the record.
    """
    deadline_s = monotonic() + options.budget_s
    source = repository.find(Path.cwd())
    with sides.workshop(source) as folder:
        named = (("base", base), ("head", head))
        one, other = (source.revision(side, name, folder, options.results) for side, name in named)
        accepted = [*options.accepted, *map(acceptance.parse, source.trailers(one, other, acceptance.TRAILER))]
        built = [stages.build(source, revision, options, folder, console) for revision in (one, other)]
        with ExitStack() as stack:
            counters = [stack.enter_context(Counter(side, options.environ)) for side in built]
            suites = stages.suites_of(counters, console)
            keys = stages.select(suites, options)
            found = stages.blank("gate", one, other, suites[1], options)
            path = record.path_for(options.results, found)
            found.write(path)  # an unwritable folder is found out before anything is measured
            counts = _count_both(counters, suites, keys, console)
        found.findings = [*_of_revisions(source, one, other), *findings.of_suites(suites[0], suites[1], keys)]
        found.findings += _recounted(built, counts, options, console)
        found.num_compared = findings.num_compared(*counts)
        found.num_skipped = len(counts[0].cases) - found.num_compared
        timed = findings.comparable(*counts) if options.budget_s else []
        found.min_effects = {key: stages.min_effect(suites, key, options) for key in timed}
        with stages.timing(found, path, PairTaker(built, options.environ), deadline_s, console) as timing:
            try:
                timing.judge(options.rule)
            finally:
                found.findings += findings.of_times(found.times)
                found.findings = acceptance.accept(found.findings, accepted)
        found.verdict, found.status = findings.verdict_of(found.findings)
        found.write(path)
    return found, path


def _of_revisions(source: Repository, base: Revision, head: Revision) -> Iterator[Finding]:
    """What a reader should know of the two commits before anything else."""
    if base.commit == head.commit:
        yield Finding("base", "commit", Weight.NOTED, "is head's commit: the same code is held against itself")
    if num := source.num_missing(base.commit, head.commit):
        told = f"has {num} commits that head lacks, and their gains count as head's losses: see git merge-base"
        yield Finding("base", "commit", Weight.NOTED, told)


def _count_both(
    counters: Sequence[Counter], suites: Sequence[Suite], keys: Sequence[str], console: Console
) -> tuple[Counts, Counts]:
    """What both have, in the same order on both sides; then what is new in head, which has to be right as well."""
    in_base, in_head = (set(suite.keys) for suite in suites)
    common = [key for key in keys if key in in_base and key in in_head]
    new = [key for key in keys if key not in in_base]
    base, head = counters
    counted = stages.count(base, suites[0], common, console)
    return counted, stages.count(head, suites[1], [*common, *new], console)


def _recounted(
    built: Sequence[Side], counts: tuple[Counts, Counts], options: Options, console: Console
) -> list[Finding]:
    """The differences, those that weigh something counted again in processes that did nothing else."""
    found = list(findings.of_cases(*counts))
    doubtful = recount.keys_to_recount(found, list(counts[1].cases))
    if not doubtful:
        return found
    with ExitStack() as stack:
        counters = [stack.enter_context(Counter(side, options.environ)) for side in built]
        base, head = (
            stages.count(counter, once.suite, [key for key in doubtful if key in once.cases], console)
            for counter, once in zip(counters, counts, strict=True)
        )
    return list(recount.confirmed(found, counts, (base, head)))
