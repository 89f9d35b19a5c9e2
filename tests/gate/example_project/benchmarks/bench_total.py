"""T1. A total of more values takes longer.

Timed: the total. Not timed: making the values.
"""

import torch
from arithmetic import total

from bench_utils.claim import Claim, Mapping, Results, Verdict
from bench_utils.verdict import above


class ClaimTotal(Claim):
    id = "T1"
    title = "a total of more values takes longer"
    tracked = {"num_values": "values"}

    param_names = ["num_values"]
    params = [[1_000, 1_000_000]]

    def setup(self, num_values):
        self.values = torch.ones(num_values)

    def run(self, num_values):
        return total(self.values)

    def check(self, output, num_values):
        assert output == num_values, f"{output} is not the total of {num_values} ones"

    def counters(self, output, num_values) -> Mapping[str, int]:
        return {"num_values": self.values.numel()}

    def verdict(self, results: Results) -> Verdict:
        ratio = results.ratio((1_000_000,), (1_000,))
        return Verdict(above(ratio, 1.0), measured=ratio.format(".1f", "x"), figures={"longer": ratio})
