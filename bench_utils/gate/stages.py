"""The stages that a gate and its self-test have in common, each with its progress."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

from rich.console import Console

from bench_utils.claim import Claim
from bench_utils.gate import acceptance, sides
from bench_utils.gate.counting import CaseCount, Counter, Suite, claim_id_of
from bench_utils.gate.findings import Counts
from bench_utils.gate.options import Options
from bench_utils.gate.pairs import PairTaker
from bench_utils.gate.record import GateRecord, Kind
from bench_utils.gate.refusal import UNDECIDED, GateRefusal
from bench_utils.gate.repository import Repository, Revision
from bench_utils.gate.sides import Side
from bench_utils.gate.timing import Timing
from bench_utils.history.entries import machine_entry
from bench_utils.history.records import now_utc
from bench_utils.lab import open_lab
from bench_utils.progress import CaseProgress, PairProgress, steps
from bench_utils.settings import unknown_choice


def build(source: Repository, revision: Revision, options: Options, folder: Path, console: Console) -> Side:
    """A revision, built."""
    with steps(console, f"building {revision.side} ({revision.told})"):
        return sides.build(source, revision, options.claims, folder)


def suites_of(counters: Sequence[Counter], console: Console) -> list[Suite]:
    """What each side claims."""
    with steps(console, "importing the claims"):
        return [counter.suite() for counter in counters]


def select(suites: Sequence[Suite], options: Options) -> list[str]:
    """The chosen cases of either side; those of the first one first.

    Raises:
        GateRefusal: a pattern names none, or the sides have none of them in common.
    """
    first, second = (suite.keys for suite in suites)
    every = list(dict.fromkeys([*first, *second]))
    demand_known(options.select, every)
    chosen = [key for key in every if options.wants(key)]
    if not {*first} & {*second} & {*chosen}:
        raise GateRefusal("no-common-case", "base and head have none of these cases in common", UNDECIDED)
    return chosen


def demand_known(patterns: Iterable[str], keys: Sequence[str]) -> None:
    """Each pattern names a case, or it is refused.

    Raises:
        GateRefusal: one names none; what there is, and the nearest.
    """
    for pattern in patterns:
        if not any(acceptance.names(pattern, key) for key in keys):
            unknown = unknown_choice("case", pattern, dict.fromkeys(map(claim_id_of, keys)))
            raise GateRefusal("unknown-case", f"{unknown} Or some of a claim's cases, as in 'A2[cached-*]'.")


def count(counter: Counter, suite: Suite, keys: Sequence[str], console: Console) -> Counts:
    """What cases cost, and whether they are right."""
    name = counter.side.name
    progress = CaseProgress(console, dict.fromkeys((f"{name} {key}" for key in keys), 0.0))
    began_s = 0.0

    def begin(key: str) -> None:
        nonlocal began_s
        began_s = perf_counter()
        progress.begin(f"{name} {key}")

    def end(key: str, counted: CaseCount) -> None:
        progress.end(f"{name} {key}", counted.code, perf_counter() - began_s)

    try:
        return Counts(suite, *counter.count(keys, begin, end))
    finally:
        progress.close()


def blank(kind: Kind, base: Revision, head: Revision, suite: Suite, options: Options) -> GateRecord:
    """A record with nothing measured yet."""
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


def min_effect(suites: Sequence[Suite], key: str, options: Options) -> float:
    """The smallest slowdown of a case that matters: the user's, or the claim's, the smaller one of both sides'.

    A change cannot excuse itself by raising it.
    """
    own = [suite.claim_of(key).min_effect or Claim.min_effect for suite in suites]
    return options.min_effect or min(own)


@contextmanager
def timing(
    found: GateRecord, path: Path, taker: PairTaker, deadline_s: float, console: Console
) -> Iterator[Timing]:
    """Pairs, kept in the record at `path` as they come."""
    progress = PairProgress(console)
    try:
        yield Timing(taker, found, deadline_s, progress, lambda: found.write(path))
    finally:
        progress.close()
        found.write(path)
