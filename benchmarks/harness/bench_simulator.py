"""S5. The scheduler's simulator serves a million requests in at most 10 s on one core, and its memory stays flat.

Timed: simulating the requests, of the chapter's lengths and at random times, on eight seats. Checked: four times
the requests take less than a byte each of memory more.
"""

import tracemalloc

from bench_utils.claim import Claim, Mapping, Results, Verdict
from bench_utils.inference.requests import CHAPTER_LENGTHS, poisson
from bench_utils.inference.scheduling import CONTINUOUS
from bench_utils.inference.simulator import Simulated, StepCosts, simulate
from bench_utils.measure.statistics import Interval
from bench_utils.verdict import at_most

NUM_REQUESTS, QUICK_REQUESTS = 100_000, 10_000
LIMIT_S_A_MILLION = 10.0
NUM_SEATS = 8
# Every step takes a second: at 0.2 requests a second the seats are three quarters full, and the queue stays short.
RATE_PER_S = 0.2


def serve(num_requests: int) -> Simulated:
    """Continuous batching at a load that it can serve."""
    requests = poisson(CHAPTER_LENGTHS, RATE_PER_S, num_requests=num_requests, seed=0)
    return simulate(requests, CONTINUOUS, NUM_SEATS, StepCosts([1.0] * NUM_SEATS))


class ClaimSimulator(Claim):
    id = "S5"
    title = "a million requests are simulated in 10 s, in flat memory"

    param_names = ["num_requests"]
    params = [[NUM_REQUESTS, QUICK_REQUESTS]]

    def skip_reason(self, num_requests) -> str:
        own = "quick" if num_requests == QUICK_REQUESTS else "full"
        return "" if own == self.lab.settings.profile else f"{own} profile only"

    def run(self, num_requests):
        return serve(num_requests)

    def check(self, output, num_requests):
        assert output.latency.num == num_requests, f"{output.latency.num:,} of {num_requests:,} served"
        few, many = (peak_bytes(num) for num in (10_000, 40_000))
        assert many - few < 30_000, f"{many - few:,} B more for 30,000 requests more"

    def counters(self, output, num_requests) -> Mapping[str, int]:
        return {"num_requests": num_requests, "num_steps": output.num_steps}

    def verdict(self, results: Results) -> Verdict:
        (case,) = results.usable()
        seconds, scale = results.median_s(*case), 1e6 / case[0]
        for_a_million = Interval(seconds.value * scale, seconds.low * scale, seconds.high * scale)
        return Verdict(
            at_most(for_a_million, LIMIT_S_A_MILLION),
            measured=f"{for_a_million.format('.2f', ' s')} a million",
            figures={"seconds_a_million": for_a_million},
        )


def peak_bytes(num_requests: int) -> int:
    """The most that simulating these allocates at once."""
    tracemalloc.start()
    try:
        serve(num_requests)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
