"""Small claims as the source of a benchmark file, and the one record that a run leaves."""

from pathlib import Path

from bench_utils.history import records

CLAIMS = """
from bench_utils.claim import Claim, Outcome, Verdict
from bench_utils.measure.bounds import Work
from bench_utils.verdict import above
import time

class ClaimFaster(Claim):
    id = "T1"
    title = "fast is faster"
    chapter = "2x [sic]"
    params = [["slow", "fast"], [1, 2]]
    param_names = ["arm", "n"]

    def run(self, arm, n):
        time.sleep(0.004 if arm == "slow" else 0.001)
        return n

    def check(self, output, arm, n):
        assert output == n

    def counters(self, output, arm, n):
        return {"n": n}

    def verdict(self, results):
        ratio = results.ratio(("slow", 1), ("fast", 1))
        return Verdict(above(ratio, 1.0), measured=ratio.format(".1f", "x"), figures={"ratio": ratio})

class ClaimExact(Claim):
    id = "T2"
    title = "two is two"
    kind = "exact"
    timed = False
    params = [[2]]
    param_names = ["n"]

    def run(self, n):
        return n

    def check(self, output, n):
        assert output == 2, f"{output} is not 2"

    def verdict(self, results):
        results[(2,)]
        return Verdict(Outcome.HOLDS, measured="2 = 2")
"""


def only_record(pytester):
    (path,) = Path(pytester.path).glob("results/*/*.json")
    return records.read(path)
