"""S1. The sampler costs less than 10 us a sample over a bare loop that takes the same samples.

Timed: 2,000 samples of nothing, through the sampler and through a bare loop. A promise of the suite's own.
"""

from bench_utils.claim import Claim, Mapping, Results, Verdict
from bench_utils.measure import overhead
from bench_utils.measure.statistics import Interval
from bench_utils.verdict import at_most

SAMPLER, BARE = "sampler", "bare loop"
NUM_SAMPLES = 2_000
LIMIT_US = 10.0


class ClaimSampleCost(Claim):
    id = "S1"
    title = "the harness costs under 10 us a sample"

    param_names = ["arm"]
    params = [[SAMPLER, BARE]]

    def run(self, arm):
        loop = overhead.sampled_loop if arm == SAMPLER else overhead.bare_loop
        return loop(NUM_SAMPLES)

    def counters(self, output, arm) -> Mapping[str, int]:
        return {"num_samples": NUM_SAMPLES}

    def verdict(self, results: Results) -> Verdict:
        sampled, bare = results.median_s(SAMPLER), results.median_s(BARE)
        cost_us = Interval(
            (sampled.value - bare.value) / NUM_SAMPLES * 1e6,
            (sampled.low - bare.high) / NUM_SAMPLES * 1e6,
            (sampled.high - bare.low) / NUM_SAMPLES * 1e6,
        )
        return Verdict(
            at_most(cost_us, LIMIT_US),
            measured=f"{cost_us.format('.2f', ' us')} a sample",
            figures={"cost_us": cost_us},
        )
