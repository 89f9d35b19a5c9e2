"""Running a claim's cases in a lab, and judging made-up ones."""

from dataclasses import replace

from bench_utils.claim import decide
from bench_utils.measure.measurement import Lap


def run(claim_class, lab, *case):
    """One case as the lab runs it without timing."""
    claim = claim_class()
    claim._lab = lab
    return lab.run_once(claim, case)[0]


def run_all(claim_class, lab):
    return {case: run(claim_class, lab, *case) for case in claim_class.cases()}


def verdict(claim_class, lab, measured):
    claim = claim_class()
    claim._lab = lab
    return decide(claim, measured)


def timed(claim, case, seconds, lab):
    return replace(run(claim, lab, *case), samples_s=tuple(seconds * (1 + 0.001 * i) for i in range(9)))


def lapped(claim, case, laps, lab, num_runs=9):
    """A case as run, with laps of these seconds (one a run, or a list of all of them)."""
    found = {
        name: Lap(tuple(s if isinstance(s, list) else (s * (1 + 0.001 * i) for i in range(num_runs))))
        for name, s in laps.items()
    }
    return replace(run(claim, lab, *case), samples_s=(1.0,) * num_runs, laps=found)
