"""The self-test's pool: pairs of a revision with itself, and with itself made slower."""

from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from rich.console import Console

from bench_utils.gate import record, repository, sides, stages
from bench_utils.gate.counting import Counter
from bench_utils.gate.options import Options
from bench_utils.gate.pairs import Arm, PairTaker
from bench_utils.gate.record import GateRecord
from bench_utils.gate.refusal import UNDECIDED, GateRefusal


def take(
    head: str | None, options: Options, num_neighbours: int, arms: Sequence[Arm], console: Console
) -> tuple[GateRecord, Path]:
    """As many pairs as the budget has time for.

    Raises:
        GateRefusal: nothing can be measured, and why.
        KeyboardInterrupt: what was measured lies in the record.
    """
    deadline_s = monotonic() + options.budget_s
    source = repository.find(Path.cwd())
    with sides.workshop(source) as folder:
        revision = source.revision("head", head, folder)
        side = stages.build(source, revision, options, folder, console)
        with Counter(side, options.environ) as counter:
            (suite,) = stages.suites_of([counter], console)
            keys = [key for key in stages.select([suite, suite], options) if suite.claim_of(key).is_timed]
            found = stages.blank("self-test", revision, revision, suite, options)
            found.num_neighbours = num_neighbours
            found.slower_by = {arm.name: arm.slower_by for arm in arms if arm.slower_by}
            path = record.path_for(options.results, found)
            found.write(path)
            cases = stages.count(counter, suite, keys, console).cases
        found.min_effects = {key: stages.min_effect(suite, key, options) for key in keys if cases[key].is_ok}
        if not found.min_effects:
            raise GateRefusal("no-common-case", "none of the chosen cases is timed here", UNDECIDED)
        taker = PairTaker([side, side], options.environ, arms)
        with stages.timing(found, path, taker, deadline_s, console) as timing, sides.neighbours(num_neighbours):
            while timing.has_time_for_another():
                timing.take(tuple(found.min_effects))
        found.verdict, found.status = "measured", 0
        found.write(path)
    return found, path
