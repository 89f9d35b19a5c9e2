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


def lapped(claim, case, laps, lab, seconds=1.0):
    """A case as run, with laps of these seconds (a number, or a sequence of samples)."""
    found = {
        name: Lap(tuple(each) if isinstance(each, list) else tuple(each * (1 + 0.001 * i) for i in range(9)))
        for name, each in laps.items()
    }
    return replace(timed(claim, case, seconds, lab), laps=found)
