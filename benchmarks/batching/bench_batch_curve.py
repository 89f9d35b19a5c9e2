"""C1. A larger batch multiplies throughput and each request's latency, up to a knee after which it buys nothing.

Timed: one decode step over B sequences in place, each with a cache of 64 tokens of a prompt of its own. Not timed:
filling the caches. A request's latency is the step's time; throughput is B over it.
"""

from itertools import pairwise

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict, Work
from bench_utils.inference import agreement
from bench_utils.inference.decode import prefill
from bench_utils.inference.requests import CHAPTER_PROMPT
from bench_utils.inference.row_cache import RowCache, ragged_step
from bench_utils.measure import counters
from bench_utils.measure.knee import Knee, find_knee
from bench_utils.measure.statistics import Interval
from bench_utils.models import facts, loading, prompts
from bench_utils.step_work import decode_bytes, decode_work
from bench_utils.verdict import above, all_of

BATCHES, ON_GPU_ONLY = [1, 2, 4, 8, 16, 32], [64, 128]
QUICK_BATCHES = [1, 2, 8]
FILLED_TOGETHER = 16
# Past its knee a doubling of the batch buys less than half of a doubling: time grows faster than its square root.
LITTLE_GAIN = 0.5


class ClaimBatchCurve(Claim):
    id = "C1"
    title = "batching multiplies throughput and latency, up to a knee"
    chapter = "1 to 16: throughput x6.0, latency x2.67; to 32: +9 %, nearly x2"
    stated = Stated(figures={"throughput_1_to_16": 6.0, "latency_1_to_16": 2.67, "throughput_16_to_32": 1.09})
    tracked = {"macs": "MACs", "moved_bytes": "bytes"}

    param_names = ["batch"]
    params = [[*BATCHES, *ON_GPU_ONLY]]

    def skip_reason(self, batch) -> str:
        if batch in ON_GPU_ONLY and self.lab.placement.device.type != "cuda":
            return "on a GPU only"
        return "full profile only" if self.lab.settings.is_quick and batch not in QUICK_BATCHES else ""

    @torch.inference_mode()
    def setup(self, batch):
        self.loaded = loading.load(self.lab.settings)
        placement = self.loaded.placement
        facts.demand_dense(self.loaded.config)  # only where the bytes of a step are known
        self.rows = RowCache(
            self.loaded.config,
            num_rows=batch,
            max_tokens=CHAPTER_PROMPT + 1,
            dtype=placement.dtype,
            device=placement.device,
        )
        self.sequences = prompts.prompt_ids(self.loaded, CHAPTER_PROMPT + 1, batch=batch)
        for first in range(0, batch, FILLED_TOGETHER):
            prompt = self.sequences[first : first + FILLED_TOGETHER, :-1]
            _, cache = prefill(self.loaded.model, prompt, last_logits_only=True)
            for row in range(len(prompt)):
                self.rows.write(first + row, cache, row)
        self.step = self.rows.step([CHAPTER_PROMPT] * batch)

    @torch.inference_mode()
    def run(self, batch):
        return ragged_step(self.loaded.model, self.sequences[:, -1], self.step)

    def check(self, output, batch):
        assert output.shape == (batch, self.loaded.config.vocab_size), f"logits {tuple(output.shape)}"
        steps = {
            f"row {row} of {batch}": (self.sequences[row : row + 1], output[row])
            for row in sorted({0, batch // 2, batch - 1})
        }
        agreement.assert_as_alone(self.loaded.model, steps)

    def counters(self, output, batch) -> Mapping[str, int]:
        return {
            "moved_bytes": decode_bytes(self.loaded, [CHAPTER_PROMPT] * batch),
            "weight_bytes": self.loaded.step_weight_bytes,
            "macs": counters.count(lambda: self.run(batch)).macs,
        }

    def work(self, output, batch) -> Work | None:
        return decode_work(self.loaded, [CHAPTER_PROMPT] * batch)

    def teardown(self, batch):
        self.rows = self.step = None

    def verdict(self, results: Results) -> Verdict:
        batches = sorted(batch for (batch,) in results.usable())
        smallest, largest = batches[0], batches[-1]
        middle = max(batch for batch in batches if batch <= max(16, smallest))
        multiples, figures = [], {}
        for small, large in pairwise(sorted({smallest, middle, largest})):
            latency, scale = results.ratio((large,), (small,)), large / small
            throughput = Interval(scale / latency.value, scale / latency.high, scale / latency.low)
            figures |= {f"throughput_{small}_to_{large}": throughput, f"latency_{small}_to_{large}": latency}
            shown = f"throughput {throughput.format('.2f', 'x')}, latency {latency.format('.2f', 'x')}"
            multiples.append(f"{small} to {large}: {shown}")
        first = [above(figures[name], 1.0) for name in list(figures)[:2]]
        outcome, words, knee = _knee(results, batches)
        if knee is not None:
            figures |= {"knee_batch": knee.batch, "exponent_after_knee": knee.exponent_after}
        return Verdict(
            all_of([*first, outcome]),
            measured="; ".join([*multiples, *([words] if outcome is Outcome.HOLDS else [])]),
            predicted=_ridge(self.lab, results),
            bound=f"{smallest}: {results.bound(smallest)}; {largest}: {results.bound(largest)}",
            reason="" if outcome is Outcome.HOLDS else words,
            figures=figures,
        )


def _knee(results: Results, batches: list[int]) -> tuple[Outcome, str, Knee | None]:
    """Whether the curve has a knee, in words, and where. Its interval is of the samples, not of the fit."""
    try:
        knee = find_knee({batch: results.samples_s(batch) for batch in batches})
    except ValueError as error:
        return Outcome.INCONCLUSIVE, str(error), None
    before, after, largest = knee.exponent_before, knee.exponent_after, batches[-1]
    gain = f"doubling the batch multiplies throughput by {2 ** (1 - after.value):.2f}"
    if before.low > LITTLE_GAIN:
        return Outcome.DOES_NOT_HOLD, f"saturated from the start: {gain}", knee
    if after.high < LITTLE_GAIN:
        return Outcome.INCONCLUSIVE, f"no knee up to {largest}: {gain} even there", knee
    if after.low <= max(LITTLE_GAIN, before.high):
        return Outcome.INCONCLUSIVE, f"a knee up to {largest} cannot be told: {gain} there", knee
    where = {batches[1]: " or before", batches[-2]: " or later"}.get(round(knee.batch.value, 2), "")
    return Outcome.HOLDS, f"knee at {knee.batch.format('.1f')}{where}", knee


def _ridge(lab, results: Results) -> str:
    """The batch at which the roofline's arithmetic takes as long as its memory: W + c B = f B / ridge."""
    ridge = lab.roofline.ridge_flop_per_byte(lab.placement.dtype_name)
    if ridge is None:
        return ""
    (batch,), some = next(iter(results.usable().items()))
    weight_bytes = some.counters["weight_bytes"]
    cache_bytes = (some.counters["moved_bytes"] - weight_bytes) / batch
    spare = 2 * some.counters["macs"] / batch / ridge - cache_bytes
    return f"a knee at the roofline's ridge, batch {weight_bytes / spare:.1f}" if spare > 0 else "memory bounds all"
