"""S4. `import bench_utils` takes at most 0.2 s, the interpreter's start included, and loads no torch.

Timed: a fresh interpreter that imports the package and ends.
"""

import subprocess
import sys
from dataclasses import replace

from bench_utils.claim import Claim, Results, Verdict
from bench_utils.measure.sampler import Budget
from bench_utils.verdict import at_most

LIMIT_S = 0.2
PROGRAM = "import sys, bench_utils; print('torch' in sys.modules)"


class ClaimImport(Claim):
    id = "S4"
    title = "importing the package takes 0.2 s and no torch"

    param_names = ["package"]
    params = [["bench_utils"]]

    def run(self, package):
        return subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout

    def check(self, output, package):
        assert output.strip() == "False", "importing bench_utils loaded torch"

    def budget(self, default: Budget) -> Budget:
        return replace(default, max_samples=15)

    def verdict(self, results: Results) -> Verdict:
        took = results.median_s("bench_utils")
        return Verdict(at_most(took, LIMIT_S), measured=took.format(".3f", " s"), figures={"import_s": took})
