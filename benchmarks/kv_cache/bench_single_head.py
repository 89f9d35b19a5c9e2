"""A3. For one attention head of dimension 64, a recomputed step builds n x n scores and a cached one 1 x n.

Timed: one step of one head in float32, its projections included, over n positions. Not timed: filling the cache.
"""

import torch

from bench_utils.claim import Claim, Mapping, Results, Stated, Verdict, Work
from bench_utils.inference import attention, macs
from bench_utils.verdict import above

RECOMPUTE, CACHED = "recompute", "cached"
HEAD_DIM = 64
LENGTHS = [16, 64, 256, 1024, 4096]
LONGEST = LENGTHS[-1]
# At the chapter's longest sequence, exactly.
SCORE_BYTES = {RECOMPUTE: 67_108_864, CACHED: 16_384}
# float32 sums of at most 4,096 products, in two orders: sqrt(4096) spacings of 2^-23, on values below about 4.
TOLERANCE = 64 * 2.0**-23 * 4


class ClaimSingleHead(Claim):
    id = "A3"
    title = "one head's step: n x n scores recomputed, 1 x n cached"
    chapter = "at n = 4,096: 67 MB of scores against 16 KB"
    stated = Stated(
        counters={(RECOMPUTE, 4_096): {"score_bytes": 67_108_864}, (CACHED, 4_096): {"score_bytes": 16_384}}
    )
    tracked = {"score_bytes": "bytes"}

    param_names = ["arm", "num_positions"]
    params = [[RECOMPUTE, CACHED], LENGTHS]

    def setup(self, arm, num_positions):
        self.head = attention.make_head(num_positions, HEAD_DIM, device=self.lab.placement.device)
        self.step = attention.cached_step if arm == CACHED else attention.recompute_step
        self.other = attention.recompute_step if arm == CACHED else attention.cached_step

    @torch.inference_mode()
    def run(self, arm, num_positions):
        return self.step(self.head)

    @torch.inference_mode()
    def check(self, output, arm, num_positions):
        (result, scores), (other_result, _) = output, self.other(self.head)
        expected = (num_positions if arm == RECOMPUTE else 1) * num_positions * 4
        assert scores.nbytes == expected, f"{scores.nbytes:,} B of scores, {expected:,} expected"
        if num_positions == LONGEST:
            assert scores.nbytes == SCORE_BYTES[arm], f"{scores.nbytes:,} B, the chapter has {SCORE_BYTES[arm]:,}"
        error = float((result - other_result).abs().max())
        assert error <= TOLERANCE, f"the two ways differ by {error:.2g}, rounding explains {TOLERANCE:.2g}"

    def counters(self, output, arm, num_positions) -> Mapping[str, int]:
        return {
            "score_bytes": output[1].nbytes,
            "macs": macs.head_step_macs(num_positions, HEAD_DIM, cached=arm == CACHED),
        }

    def work(self, output, arm, num_positions) -> Work:
        # Cached: every key and value once. Recomputed: every input once, every score written and read.
        rows = num_positions * HEAD_DIM * 4
        moved = 2 * rows if arm == CACHED else rows + 2 * output[1].nbytes
        multiplied = macs.head_step_macs(num_positions, HEAD_DIM, cached=arm == CACHED)
        return Work(moved, multiplied, moved, "float32")

    def verdict(self, results: Results) -> Verdict:
        ratio = results.ratio((RECOMPUTE, LONGEST), (CACHED, LONGEST))
        scores = {arm: results[arm, LONGEST].counters["score_bytes"] for arm in (RECOMPUTE, CACHED)}
        short = results.ratio((RECOMPUTE, LENGTHS[0]), (CACHED, LENGTHS[0]))
        return Verdict(
            above(ratio, 1.0),
            measured=f"{scores[RECOMPUTE]:,} B against {scores[CACHED]:,} B; the step takes "
            f"{ratio.format(',.0f', 'x')} as long at n = {LONGEST:,}, {short.format('.2f', 'x')} at {LENGTHS[0]}",
            bound="; ".join(f"{arm}: {results.bound(arm, LONGEST)}" for arm in (RECOMPUTE, CACHED)),
            figures={f"step_ratio_{LONGEST}": ratio, f"step_ratio_{LENGTHS[0]}": short},
        )
