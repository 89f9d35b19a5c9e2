"""T2. A total needs no more bytes than its values, and ones in their shape."""

import torch
from arithmetic import total

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict


class ClaimBytes(Claim):
    id = "T2"
    title = "a total needs little besides its values"
    kind = "exact"
    timed = False
    tracked = {"bytes": "B"}

    param_names = ["num_values"]
    params = [[10, 20]]

    def run(self, num_values):
        return total(torch.ones(num_values))

    def check(self, output, num_values):
        assert output == num_values, f"{output} is not the total of {num_values} ones"

    def counters(self, output, num_values) -> Mapping[str, int]:
        return {"bytes": 2 * num_values * output.element_size()}

    def verdict(self, results: Results) -> Verdict:
        assert results[(20,)].counters["bytes"] == 2 * results[(10,)].counters["bytes"]
        return Verdict(Outcome.HOLDS, measured="in proportion")
