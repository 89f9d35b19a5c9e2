"""S2. The decode rate that the suite reports is within 2 % of a bare loop's over the same code.

Timed: a fixed number of cached decode steps on the model at hand, by the sampler and by a bare loop in turn.
"""

from bench_utils.claim import Claim, Mapping, Results, Verdict
from bench_utils.inference.decode import greedy_cached
from bench_utils.measure import overhead
from bench_utils.measure.clock import wall_clock_for
from bench_utils.measure.statistics import Interval
from bench_utils.models import loading, prompts
from bench_utils.verdict import above, all_of, at_most

# Short runs and many pairs: a machine that drifts over seconds slows both sides of a pair alike.
NUM_STEPS = 2
WITHIN = 0.02


class ClaimReportedRate(Claim):
    id = "S2"
    title = "reported decode tok/s is within 2 % of a bare loop"
    timed = False  # the pairs inside are timed, and returned
    tracked = {"deviation": "fraction"}  # as a cost: upwards is worse, whichever side it errs to

    param_names = ["num_tokens"]
    params = [[NUM_STEPS]]

    def setup(self, num_tokens):
        self.loaded = loading.load(self.lab.settings)
        self.prompt = prompts.prompt_ids(self.loaded, 1)

    def run(self, num_tokens) -> Interval:
        num_pairs = 15 if self.lab.settings.is_quick else 61
        return overhead.reported_over_bare(
            lambda: greedy_cached(self.loaded.model, self.prompt, num_tokens),
            self.lab.clock,
            wall_clock_for(self.lab.placement.device.type),
            num_pairs=num_pairs,
        )

    def counters(self, output: Interval, num_tokens) -> Mapping[str, float]:
        return {
            "reported_over_bare": output.value,
            "lowest": output.low,
            "highest": output.high,
            "deviation": abs(output.value - 1),
        }

    def verdict(self, results: Results) -> Verdict:
        counted = results[(NUM_STEPS,)].counters
        rate = Interval(counted["reported_over_bare"], counted["lowest"], counted["highest"])
        # Within 2 % either way, as far as the pairs can tell.
        outcome = all_of([above(rate, 1 - WITHIN), at_most(rate, 1 + WITHIN)])
        measured = f"{rate.format('.3f')} of the bare loop's rate"
        return Verdict(outcome, measured=measured, figures={"reported_over_bare": rate})
