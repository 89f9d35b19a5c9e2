"""The self-test's pool: pairs of a revision with itself, and with itself made slower."""

from pathlib import Path
from time import monotonic

from rich.console import Console

from bench_utils.gate import record, repository, sides, stages
from bench_utils.gate.counting import Counter
from bench_utils.gate.findings import TIME, Finding, Weight
from bench_utils.gate.options import Options
from bench_utils.gate.pairs import PairTaker
from bench_utils.gate.record import GateRecord
from bench_utils.gate.refusal import UNDECIDED, GateRefusal
from bench_utils.gate.self_test import ARMS, SLOWED, figures_of


def take(
    head: str | None, options: Options, console: Console, num_neighbours: int, *, resume: bool
) -> tuple[GateRecord, Path]:
    """As many pairs as the budget has time for, or so many more where an earlier self-test like this goes on.

    Raises:
        GateRefusal: nothing can be measured, and why.
        KeyboardInterrupt: what was measured lies in the record.
    """
    deadline_s = monotonic() + options.budget_s
    source = repository.find(Path.cwd())
    with sides.workshop(source) as folder:
        revision = source.revision("head", head, folder, options.results)
        side = stages.build(source, revision, options, folder, console)
        with Counter(side, options.environ) as counter:
            (suite,) = stages.suites_of([counter], console)
            keys = [key for key in stages.select([suite, suite], options) if suite.claim_of(key).is_timed]
            cases = stages.count(counter, suite, keys, console).cases
        found = stages.blank("self-test", revision, revision, suite, options)
        found.num_neighbours = num_neighbours
        found.contrasts = SLOWED
        found.min_effects = {key: stages.min_effect([suite], key, options) for key in keys if cases[key].is_ok}
        if not found.min_effects:
            raise GateRefusal("no-common-case", "none of the chosen cases is timed here", UNDECIDED)
        path = record.path_for(options.results, found)
        if resume:
            path, found = _earlier(found, options.results)
        taker = PairTaker([side, side], options.environ, ARMS)
        with stages.timing(found, path, taker, deadline_s, console) as timing, sides.neighbours(num_neighbours):
            while timing.has_time_for_another():
                timing.take([key for key in found.min_effects if key not in timing.failed])
        failed = timing.failed.items()
        found.findings = [Finding(key, TIME, Weight.NOTED, f"left out: {why}") for key, why in failed]
        found.min_effects = {key: each for key, each in found.min_effects.items() if key not in timing.failed}
        if not found.min_effects:
            raise GateRefusal("nothing-timed", next(iter(timing.failed.values())), UNDECIDED)
        found.figures = figures_of(found, options.rule)
        found.verdict, found.status = "measured", 0
        found.write(path)
    return found, path


def _earlier(like: GateRecord, results: Path) -> tuple[Path, GateRecord]:
    """The newest self-test of the same code, cases and conditions.

    Raises:
        GateRefusal: there is none.
    """
    for path, found in record.self_tests(results, like.machine.id):
        if _conditions(found) == _conditions(like):
            return path, found
    message = "no self-test of this commit, these cases and these conditions is there to go on with"
    raise GateRefusal("nothing-to-resume", message)


def _conditions(of: GateRecord) -> tuple[object, ...]:
    conditions = (of.head, of.model, of.profile, of.device, of.dtype, of.num_neighbours, of.contrasts)
    return (*conditions, of.min_effects, of.machine.num_threads, dict(of.machine.versions))
