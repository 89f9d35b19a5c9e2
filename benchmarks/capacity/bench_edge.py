"""H2. What is predicted to fit in a limit that the system keeps runs, and a few per cent more is refused.

One process measures the overhead at an eighth of the load: the least limit under which a decode step runs, less
weights and cache. Another one is limited, and finds the longest context that runs. The limit holds from when the
weights lie in memory; positions beyond those that the model was made for cost as much. Nothing is timed.
"""

import math

from bench_utils import edge
from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.capacity import OVERHEAD_BYTES, Capacity
from bench_utils.inference.kv_cache import bytes_per_token
from bench_utils.models import facts, loading
from bench_utils.models.cache_layout import cache_layout
from bench_utils.verdict import MARGIN, all_of

# Many times what one process takes more than another.
TARGET_CACHE_BYTES = {"cpu": 256 * 2**20, "cuda": 2 * 2**30}
SMALLER = 8  # the overhead is measured at this part of the load
ROUND = 64 * 2**20  # limits are round numbers, so that the prediction has something to predict
MIB = 2**20


class ClaimEdge(Claim):
    id = "H2"
    title = "the answer is right at the edge"
    chapter = "overhead 1.5 GiB"
    timed = False
    tracked = {"cache_bytes": "bytes"}

    param_names = ["users"]
    params = [[1, 8]]

    def skip_reason(self, users) -> str:
        return "full profile only" if self.lab.settings.is_quick and users == 1 else ""

    def setup(self, users):
        loaded = loading.load(self.lab.settings)
        self.token_bytes = bytes_per_token(facts.cache_shape(loaded.config), loaded.placement.dtype.itemsize)
        self.layout, self.weight_bytes = cache_layout(loaded.config), loaded.weight_bytes
        self.element_bytes = loaded.placement.dtype.itemsize
        target = TARGET_CACHE_BYTES.get(loaded.placement.device.type, 0)  # 0: no limit is known there
        self.num_tokens = max(SMALLER, target // self.token_bytes // users)

        # A GPU may hold the model once only, and the process that is limited makes its own.
        del loaded
        loading.let_go()

    def run(self, users):
        smaller = self.num_tokens // SMALLER
        need = edge.need(self.lab.settings, num_users=users, num_tokens=smaller)
        # As one would write it down: with what another process may take more, in whole MiB.
        overhead = math.ceil((need.overhead_bytes + need.spread_bytes) / MIB) * MIB
        limit = (overhead + self.weight_bytes + self.num_tokens * users * self.token_bytes) // ROUND * ROUND
        capacity = Capacity(limit, self.weight_bytes, self.layout, self.element_bytes, overhead)
        predicted = capacity.longest_context(num_users=users)
        longest = edge.longest(
            self.lab.settings,
            num_users=users,
            limit_bytes=limit,
            num_tokens=min(smaller, predicted),
            most=math.ceil(predicted * (1 + 2 * MARGIN)),
        )
        return need, capacity, predicted, longest

    def check(self, output, users):
        need, *_ = output
        assert need.weight_bytes == self.weight_bytes, f"{need.weight_bytes:,} B of weights there"
        expected = self.num_tokens // SMALLER * users * self.token_bytes
        assert need.cache_bytes == expected, f"{need.cache_bytes:,} B of cache there, {expected:,} by formula"

    def counters(self, output, users) -> Mapping[str, int]:
        need, capacity, predicted, longest = output
        return {
            "limit_bytes": capacity.memory_bytes,
            "overhead_bytes": capacity.overhead_bytes,
            "weight_bytes": need.weight_bytes,
            "cache_bytes": need.cache_bytes,
            "predicted_tokens": predicted,
            "longest_tokens": longest,
        }

    def notes(self, output, users) -> Mapping[str, str]:
        return {"limit": output[0].what}

    def verdict(self, results: Results) -> Verdict:
        said, outcomes = [], []
        for (users,), found in sorted(results.usable().items()):
            counted = found.counters
            predicted, longest = counted["predicted_tokens"], counted["longest_tokens"]
            more = longest / predicted - 1  # what ran beyond the prediction; one token further the system refused
            is_right = 0 <= more <= MARGIN
            outcomes.append(Outcome.HOLDS if is_right else Outcome.DOES_NOT_HOLD)
            limit, overhead = (counted[f"{what}_bytes"] // MIB for what in ("limit", "overhead"))
            said.append(
                f"{users} user{'s' * (users > 1)} in {limit:,} MiB: {predicted:,} tokens each predicted, "
                f"{longest:,} ran ({more:+.1%}), one more refused; overhead {overhead:,} MiB"
            )
        return Verdict(
            all_of(outcomes),
            measured="; ".join(said),
            predicted=f"at most {MARGIN:.0%} more; the chapter's overhead is {OVERHEAD_BYTES // MIB:,} MiB",
        )
