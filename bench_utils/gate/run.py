"""One gate from revisions to findings: build both sides, count, time, and weigh what is not as it was."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, perf_counter

from rich.console import Console

from bench_utils.gate import acceptance, findings, record, recount, repository, sides
from bench_utils.gate.counting import Counted, Suite, count, suite_of
from bench_utils.gate.findings import Counts, Finding
from bench_utils.gate.options import Options
from bench_utils.gate.pairs import Arm, PairTaker
from bench_utils.gate.record import GateRecord, Kind
from bench_utils.gate.refusal import UNDECIDED, GateRefusal
from bench_utils.gate.repository import Repository, Revision
from bench_utils.gate.rule import DEFAULT_MIN_EFFECT
from bench_utils.gate.sides import Side
from bench_utils.gate.timing import Timing
from bench_utils.history.entries import machine_entry
from bench_utils.history.records import now_utc
from bench_utils.lab import open_lab
from bench_utils.progress import CaseProgress, PairProgress, steps
from bench_utils.settings import unknown_choice


def gate(base: str, head: str | None, options: Options, console: Console) -> tuple[GateRecord, Path]:
    """Hold a revision against another one: `head`, the commit at hand where it is None, or '.', the working tree.

    Raises:
        GateRefusal: nothing can be judged, and why.
        KeyboardInterrupt: what was measured lies in the record.
    """
    deadline_s = monotonic() + options.budget_s
    source = repository.find(Path.cwd())
    with sides.workshop(source) as folder:
        one, other = source.revision("base", base, folder), source.revision("head", head, folder)
        accepted = [*options.accepted, *map(acceptance.parse, source.trailers(one, other, acceptance.TRAILER))]
        built = [_build(source, revision, options, folder, console) for revision in (one, other)]
        suites = [_suite(side, options, console) for side in built]
        keys = select(suites, options)
        found = _blank("gate", one, other, suites[1], options)
        path = record.path_for(options.results, found)
        found.write(path)  # an unwritable folder is found out before anything is measured
        counts = _count_both(built, suites, keys, options, console)
        found.findings = list(findings.of_suites(suites[0], suites[1], keys))
        found.findings += _recounted(built, counts, options, console)
        found.num_compared = sum(one.is_ok and counts[1].cases[key].is_ok for key, one in counts[0].cases.items())
        timed = findings.comparable(*counts)
        found.min_effects = {key: _min_effect(suites[1], key, options) for key in timed}
        with _timing(found, path, PairTaker(built, options.environ), deadline_s, console) as timing:
            try:
                timing.judge(options.rule)
            finally:
                found.findings += findings.of_times(found.times)
                found.findings = acceptance.accept(found.findings, accepted)
        found.verdict, found.status = findings.verdict_of(found.findings)
        found.write(path)
    return found, path


def pool(
    head: str | None, options: Options, num_neighbours: int, arms: Sequence[Arm], console: Console
) -> tuple[GateRecord, Path]:
    """Pairs of a revision with itself and with itself made slower, for as long as the budget lasts.

    Raises:
        GateRefusal: nothing can be measured, and why.
    """
    deadline_s = monotonic() + options.budget_s
    source = repository.find(Path.cwd())
    with sides.workshop(source) as folder:
        revision = source.revision("head", head, folder)
        side = _build(source, revision, options, folder, console)
        suite = _suite(side, options, console)
        keys = [key for key in select([suite, suite], options) if suite.claim_of(key).is_timed]
        found = _blank("self-test", revision, revision, suite, options)
        found.num_neighbours = num_neighbours
        found.slower_by = {arm.name: arm.slower_by for arm in arms if arm.slower_by}
        path = record.path_for(options.results, found)
        found.write(path)
        cases = _count(side, keys, options, console)[0]
        found.min_effects = {key: _min_effect(suite, key, options) for key in keys if cases[key].is_ok}
        if not found.min_effects:
            raise GateRefusal("no-common-case", "none of the chosen cases is timed here", UNDECIDED)
        taker = PairTaker([side, side], options.environ, arms)
        with _timing(found, path, taker, deadline_s, console) as timing, sides.neighbours(num_neighbours):
            while timing.has_time_for_another():
                timing.take(tuple(found.min_effects))
        found.verdict, found.status = "measured", 0
        found.write(path)
    return found, path


def select(suites: Sequence[Suite], options: Options) -> list[str]:
    """The chosen cases of either side; those of the first one first.

    Raises:
        GateRefusal: a pattern names none, or the sides have none of them in common.
    """
    first, second = ([key for claim in side.claims.values() for key in claim.cases] for side in suites)
    every = list(dict.fromkeys([*first, *second]))
    for pattern in options.select:
        if not any(acceptance.names(pattern, key) for key in every):
            known = dict.fromkeys(key.split("[", 1)[0] for key in every)
            raise GateRefusal(
                "unknown-case", f"{unknown_choice('case', pattern, known)} Or a case, as in 'A2[cached-*]'."
            )
    chosen = [key for key in every if options.wants(key)]
    if not {*first} & {*second} & {*chosen}:
        raise GateRefusal("no-common-case", "base and head have none of these cases in common", UNDECIDED)
    return chosen


def _build(source: Repository, revision: Revision, options: Options, folder: Path, console: Console) -> Side:
    with steps(console, f"building {revision.side} ({revision.told})"):
        return sides.build(source, revision, options.claims, folder)


def _suite(side: Side, options: Options, console: Console) -> Suite:
    with steps(console, f"importing the claims of {side.name}"):
        return suite_of(side, options.environ)


def _blank(kind: Kind, base: Revision, head: Revision, suite: Suite, options: Options) -> GateRecord:
    with ExitStack() as stack:
        machine = open_lab(options.settings, stack, with_passes=False, limits="none").machine
    return GateRecord(
        kind=kind,
        started_at=now_utc(),
        base=base.state,
        head=head.state,
        model=Path(options.settings.model).name,
        profile=options.settings.profile,
        device=suite.device,
        dtype=suite.dtype,
        machine=machine_entry(machine, options.settings.machine),
    )


def _min_effect(suite: Suite, key: str, options: Options) -> float:
    return options.min_effect or suite.claim_of(key).min_effect or DEFAULT_MIN_EFFECT


def _count_both(
    built: Sequence[Side], suites: Sequence[Suite], keys: Sequence[str], options: Options, console: Console
) -> tuple[Counts, Counts]:
    """What both have, in the same order on both sides; then what is new in head, which has to be right as well."""
    in_base, in_head = ({key for claim in side.claims.values() for key in claim.cases} for side in suites)
    common = [key for key in keys if key in in_base and key in in_head]
    new = [key for key in keys if key not in in_base]
    base = Counts(suites[0], *_count(built[0], common, options, console))
    return base, Counts(suites[1], *_count(built[1], [*common, *new], options, console))


def _recounted(
    built: Sequence[Side], counts: tuple[Counts, Counts], options: Options, console: Console
) -> list[Finding]:
    found = list(findings.of_cases(*counts))
    doubtful = recount.keys_to_recount(found, list(counts[0].cases))
    if not doubtful:
        return found
    again = [
        Counts(one.suite, *_count(side, doubtful, options, console))
        for side, one in zip(built, counts, strict=True)
    ]
    return list(recount.confirmed(found, counts, (again[0], again[1])))


def _count(
    side: Side, keys: Sequence[str], options: Options, console: Console
) -> tuple[dict[str, Counted], dict[str, tuple[str, str]]]:
    progress = CaseProgress(console, dict.fromkeys((f"{side.name} {key}" for key in keys), 0.0))
    began_s = perf_counter()

    def begin(key: str) -> None:
        nonlocal began_s
        began_s = perf_counter()
        progress.begin(f"{side.name} {key}")

    def end(key: str, counted: Counted) -> None:
        progress.end(f"{side.name} {key}", counted.code, perf_counter() - began_s)

    try:
        return count(side, keys, options.environ, begin, end)
    finally:
        progress.close()


@contextmanager
def _timing(
    found: GateRecord, path: Path, taker: PairTaker, deadline_s: float, console: Console
) -> Iterator[Timing]:
    progress = PairProgress(console)
    try:
        yield Timing(taker, found, deadline_s, progress, lambda: found.write(path))
    finally:
        progress.close()
        found.write(path)
