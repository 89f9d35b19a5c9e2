"""B2. Prefill's cost per token falls with the prompt's length until arithmetic is the limit.

Timed: one pass over the prompt that makes the last position's logits and fills the cache, as serving does.
"""

from dataclasses import replace
from itertools import pairwise

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict, Work
from bench_utils.inference import macs
from bench_utils.inference.decode import prefill
from bench_utils.measure import counters
from bench_utils.measure.bounds import BOUND_SHARE
from bench_utils.measure.sampler import Budget
from bench_utils.measure.statistics import Interval
from bench_utils.models import facts, loading, prompts
from bench_utils.step_work import prefill_work
from bench_utils.verdict import above, all_of

LENGTHS = [1, 16, 64, 256, 1_024]


class ClaimPrefill(Claim):
    id = "B2"
    title = "prefill gets cheaper per token until compute is the limit"
    chapter = "25.6 ms a token at 40"
    tracked = {"macs": "MACs"}

    param_names = ["num_prompt"]
    params = [LENGTHS]

    def skip_reason(self, num_prompt) -> str:
        return "full profile only" if self.lab.settings.is_quick and num_prompt == LENGTHS[-1] else ""

    def setup(self, num_prompt):
        self.loaded = loading.load(self.lab.settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        self.prompt = prompts.prompt_ids(self.loaded, num_prompt)

    @torch.inference_mode()
    def run(self, num_prompt):
        return prefill(self.loaded.model, self.prompt, last_logits_only=True)

    def check(self, output, num_prompt):
        logits, cache = output
        assert logits.shape == (1, 1, self.loaded.config.vocab_size), f"logits {tuple(logits.shape)}"
        assert cache.get_seq_length() == num_prompt, f"{cache.get_seq_length()} tokens cached of {num_prompt}"
        self.macs = counters.count(lambda: self.run(num_prompt)).macs
        shape = facts.known_decoder_shape(self.loaded.config)
        if shape is not None:
            expected = macs.prefill_macs(shape, num_prompt)
            assert self.macs == expected, f"counted {self.macs:,} MACs, the formula has {expected:,}"

    def counters(self, output, num_prompt) -> Mapping[str, int]:
        return {"macs": self.macs}

    def work(self, output, num_prompt) -> Work | None:
        return prefill_work(self.loaded, num_prompt)

    def budget(self, default: Budget) -> Budget:
        return replace(default, max_time_s=min(4.0, default.max_time_s))  # over a second at the longest

    def verdict(self, results: Results) -> Verdict:
        lengths = [n for n in LENGTHS if (n,) in results.usable()] or LENGTHS
        token_ms = {n: 1e3 * results.median_s(n).value / n for n in lengths}
        cheapest = min(lengths, key=lambda n: token_ms[n])
        # The fall is over at the first length that cannot be told from the cheapest: a plateau is expected.
        last = next(n for n in lengths if _per_token(results, n, cheapest).low <= 1.0)
        falls = [above(_per_token(results, a, b), 1.0) for a, b in pairwise(lengths) if b <= last]
        if not falls:
            return Verdict(Outcome.INCONCLUSIVE, reason=f"nothing shorter than {cheapest} tokens to compare with")
        first, (end, reason) = _per_token(results, lengths[0], cheapest), _end_of_the_fall(results, cheapest, last)
        costs = ", ".join(f"{ms:.3g} at {n}" for n, ms in token_ms.items())
        return Verdict(
            all_of([*falls, end]),
            measured=f"ms a token: {costs}; {first.format('.1f', 'x')} cheaper at {cheapest}",
            bound=f"{cheapest}: {results.bound(cheapest)}",
            reason=reason,
            figures={"first_over_cheapest_per_token": first},
        )


def _per_token(results: Results, shorter: int, longer: int) -> Interval:
    """The shorter prompt's time per token over the longer's."""
    ratio, scale = results.ratio((shorter,), (longer,)), longer / shorter
    return Interval(ratio.value * scale, ratio.low * scale, ratio.high * scale)


def _end_of_the_fall(results: Results, cheapest: int, last: int) -> tuple[Outcome, str]:
    """Whether arithmetic ends the fall, and why not: half the measured peak at least, by the whole interval."""
    bound, time_s = results[(cheapest,)].bound, results.median_s(cheapest)
    if bound is None or bound.share_of_peak is None:
        return Outcome.INCONCLUSIVE, "no measured peak in this dtype, or no count of this architecture"
    work = bound.share_of_peak * time_s.value
    share = Interval(bound.share_of_peak, work / time_s.high, work / time_s.low)
    outcome, shown = above(share, BOUND_SHARE), f"at {share.format('.0%')} of the peak"
    if outcome is not Outcome.HOLDS and last == max(n for (n,) in results.usable()):
        return Outcome.INCONCLUSIVE, f"the cost still falls at the longest prompt, {shown}"
    if outcome is Outcome.DOES_NOT_HOLD:
        return outcome, f"the fall ends {shown}: something other than arithmetic is the limit"
    return outcome, "" if outcome is Outcome.HOLDS else f"the fall ends {shown}: about half, the line drawn here"
