"""A4. Generating T tokens costs O(T^2) multiply-accumulates with the cache and O(T^3) without, exactly by formula.

Nothing is timed: every step is run under a counter of matrix products, from a cold start of one token.
"""

from dataclasses import replace
from functools import partial

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference import attention, decode, macs
from bench_utils.measure import counters
from bench_utils.models import facts, loading, prompts
from bench_utils.models.catalog import CHAPTER_SHAPE

HEAD, MODEL, CHAPTER = "one head", "model at hand", "chapter's model"
HEAD_DIM = 64
NUM_TOKENS = [4, 12, 48]
# Where the formula, once proved equal to the counter, is followed beyond what is run.
FAR = 100_000


def head_macs(num_tokens, *, cached):
    return sum(macs.head_step_macs(n, HEAD_DIM, cached=cached) for n in range(1, num_tokens + 1))


class ClaimMacs(Claim):
    id = "A4"
    title = "multiply-accumulates: per step linear against quadratic"
    kind = "exact"
    chapter = "O(T^2) against O(T^3); T = 48 lies below its table's first row"
    timed = False
    tracked = {"cached_macs": "MACs", "recompute_macs": "MACs"}

    param_names = ["subject", "num_tokens"]
    params = [[HEAD, MODEL, CHAPTER], NUM_TOKENS]

    def skip_reason(self, subject, num_tokens) -> str:
        if subject == HEAD:
            return ""
        if self.lab.settings.is_quick and num_tokens > NUM_TOKENS[0]:
            return "full profile only"
        if self.lab.placement.device.type == "cpu" and num_tokens > NUM_TOKENS[1]:
            return "on a CPU this length is counted for one head only: it adds minutes and no new term"
        return ""

    def setup(self, subject, num_tokens):
        if subject == HEAD:
            return
        settings = self.lab.settings if subject == MODEL else replace(self.lab.settings, model=CHAPTER_SHAPE)
        self.loaded = loading.load(settings)
        self.shape = facts.decoder_shape(self.loaded.config)

    def run(self, subject, num_tokens):
        """(cached, recompute) counts of the whole generation."""
        if subject == HEAD:
            device = self.lab.placement.device
            heads = [attention.make_head(n, HEAD_DIM, device=device) for n in range(1, num_tokens + 1)]
            ways = [
                partial(lambda step: [step(head) for head in heads], step)
                for step in (attention.cached_step, attention.recompute_step)
            ]
        else:
            first = prompts.prompt_ids(self.loaded, 1)
            ways = [
                partial(generate, self.loaded.model, first, num_tokens)
                for generate in (decode.greedy_cached, decode.greedy_recompute)
            ]
        return tuple(counters.count(way) for way in ways)

    def formula(self, subject, num_tokens, *, cached):
        if subject == HEAD:
            return head_macs(num_tokens, cached=cached)
        return sum(macs.model_step_macs(self.shape, n, cached=cached) for n in range(1, num_tokens + 1))

    def check(self, output, subject, num_tokens):
        for counted, cached in zip(output, (True, False), strict=True):
            expected = self.formula(subject, num_tokens, cached=cached)
            assert counted.macs == expected, f"counted {counted.macs:,} MACs, the formula has {expected:,}"

    def counters(self, output, subject, num_tokens) -> Mapping[str, int]:
        cached, recompute = output
        return {
            "cached_macs": cached.macs,
            "recompute_macs": recompute.macs,
            "cached_kernels": cached.num_kernels,
            "recompute_kernels": recompute.num_kernels,
        }

    def verdict(self, results: Results) -> Verdict:
        parts = []
        for subject in (HEAD, MODEL, CHAPTER):
            ratios = {
                n: found.counters["recompute_macs"] / found.counters["cached_macs"]
                for (name, n), found in results.usable().items()
                if name == subject
            }
            grows = list(ratios.values()) == sorted(ratios.values())
            assert grows, f"{subject}: the ratio does not grow: {ratios}"
            if ratios:
                shown = ", ".join(f"{ratio:.2f}x at T = {n}" for n, ratio in ratios.items())
                parts.append(f"{subject}: {shown}")
        # Without bound: for the head the ratio of the formulas itself passes any limit one may name.
        far = head_macs(FAR, cached=False) / head_macs(FAR, cached=True)
        return Verdict(
            Outcome.HOLDS,
            measured=f"equal to the formula to the last MAC; {'; '.join(parts)}",
            predicted=f"one head: {far:,.0f}x at T = {FAR:,}",
        )
