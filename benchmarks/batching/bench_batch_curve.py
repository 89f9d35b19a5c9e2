"""C1. A larger batch multiplies throughput and each request's latency, up to a knee after which it buys nothing.

Timed: one decode step over B sequences in place, each with a cache of 64 tokens of a prompt of its own. Not timed:
filling the caches. A request's latency is the step's time; throughput is B over it.
"""

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict, Work
from bench_utils.inference import agreement
from bench_utils.inference.decode import prefill
from bench_utils.inference.requests import CHAPTER_PROMPT
from bench_utils.inference.row_cache import RowCache, ragged_step
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
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
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
        sequence = self.sequences[-1:]
        own = agreement.logits_in(self.loaded.model, self.loaded.placement.dtype, sequence)
        tolerance = agreement.rounding_tolerance(self.loaded.model, sequence, own)
        difference = float((output[-1].cpu().double() - own[-1]).abs().max())
        assert difference <= tolerance, (
            f"the last of {batch} sequences differs by {difference:.2g} from itself alone, rounding {tolerance:.2g}"
        )

    def counters(self, output, batch) -> Mapping[str, int]:
        work = decode_work(self.loaded, [CHAPTER_PROMPT] * batch)
        moved = {
            "moved_bytes": decode_bytes(self.loaded, [CHAPTER_PROMPT] * batch),
            "weight_bytes": self.loaded.step_weight_bytes,
        }
        return {**moved, "macs": work.macs} if work else moved

    def work(self, output, batch) -> Work | None:
        return decode_work(self.loaded, [CHAPTER_PROMPT] * batch)

    def teardown(self, batch):
        self.rows = self.step = None

    def verdict(self, results: Results) -> Verdict:
        batches = sorted(batch for (batch,) in results.usable())
        largest = batches[-1]
        multiples, outcomes = [], []
        figures = {}
        for small, large in ((1, min(16, largest)), (16, 32)):
            if small not in batches or large not in batches or small == large:
                continue
            latency = results.ratio((large,), (small,))
            scale = large / small
            throughput = Interval(scale / latency.value, scale / latency.high, scale / latency.low)
            figures |= {f"throughput_{small}_to_{large}": throughput, f"latency_{small}_to_{large}": latency}
            shown = f"throughput {throughput.format('.2f', 'x')}, latency {latency.format('.2f', 'x')}"
            multiples.append(f"{small} to {large}: {shown}")
            outcomes += [above(throughput, 1.0), above(latency, 1.0)] if small == 1 else []
        knee, outcome, words = _knee(results, batches)
        if knee is not None:
            figures |= {"knee_batch": knee.batch, "exponent_after_knee": knee.exponent_after}
        return Verdict(
            all_of([*outcomes, outcome]),
            measured="; ".join([*multiples, words]),
            predicted=_ridge(self.lab, results),
            bound=f"1: {results.bound(batches[0])}; {largest}: {results.bound(largest)}",
            figures=figures,
        )


def _knee(results: Results, batches: list[int]) -> tuple[Knee | None, Outcome, str]:
    """The knee, whether it is one, and in words."""
    try:
        knee = find_knee({batch: results.samples_s(batch) for batch in batches})
    except ValueError as error:
        return None, Outcome.INCONCLUSIVE, str(error)
    bends = all_of([above(knee.exponent_after, LITTLE_GAIN), above(knee.exponent_after, knee.exponent_before.high)])
    if bends is not Outcome.HOLDS:
        gain = 2 ** (1 - knee.exponent_after.value)
        words = f"no knee up to {batches[-1]}: doubling the batch still multiplies throughput by {gain:.2f}"
        return knee, Outcome.INCONCLUSIVE, words
    return knee, Outcome.HOLDS, f"knee at {knee.batch.format('.1f')}"


def _ridge(lab, results: Results) -> str:
    """The batch at which the roofline's arithmetic takes as long as its memory: W + c B = f B / ridge."""
    ridge = lab.roofline.ridge_flop_per_byte(lab.placement.dtype_name)
    single = results[(1,)].counters
    if ridge is None or "macs" not in single:
        return ""
    cache_bytes = single["moved_bytes"] - single["weight_bytes"]
    spare = 2 * single["macs"] / ridge - cache_bytes
    if spare <= 0:
        return "memory bounds every batch"
    return f"a knee at the roofline's ridge, batch {single['weight_bytes'] / spare:.1f}"
