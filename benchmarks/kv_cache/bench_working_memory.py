"""A5. Generating without the KV cache needs a larger working memory than generating with it.

Counted: the peak of what a generation allocates above the resident weights, from the allocator on CUDA and from
an exact tensor tracker elsewhere. Without a cache nothing survives a step but the ids, so the peak of the whole
loop is that of its longest step, and only that step is run. Nothing is timed.
"""

from functools import partial

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.decode import full_pass, greedy_cached
from bench_utils.measure.memory import cuda_peak_bytes
from bench_utils.measure.tensor_tracker import peak_tensor_bytes
from bench_utils.models import facts, loading, prompts

NUM_PROMPT = 40
RECOMPUTE, LAST_LOGITS, CACHED = "recompute", "recompute, last logits only", "cached"
# The chapter's length, and a shorter one.
LENGTHS = [64, 256]


class ClaimWorkingMemory(Claim):
    id = "A5"
    title = "without the cache the working memory is larger"
    chapter = "8.3x, 256 tokens in fp16"
    timed = False
    tracked = {"peak_bytes": "bytes"}

    param_names = ["arm", "num_tokens"]
    params = [[RECOMPUTE, LAST_LOGITS, CACHED], LENGTHS]

    def skip_reason(self, arm, num_tokens) -> str:
        return "full profile only" if self.lab.settings.is_quick and num_tokens > LENGTHS[0] else ""

    def setup(self, arm, num_tokens):
        self.loaded = loading.load(self.lab.settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        length = NUM_PROMPT if arm == CACHED else NUM_PROMPT + num_tokens - 1
        self.sequence = prompts.prompt_ids(self.loaded, length)

    @torch.inference_mode()
    def run(self, arm, num_tokens):
        model = self.loaded.model
        if arm == CACHED:
            work = partial(greedy_cached, model, self.sequence, num_tokens)
        else:
            work = partial(full_pass, model, self.sequence, last_logits_only=arm == LAST_LOGITS)
        if self.lab.placement.device.type == "cuda":
            work()  # kernels' own workspaces are allocated once and stay
            return cuda_peak_bytes(work)
        return peak_tensor_bytes(work)

    def check(self, output, arm, num_tokens):
        vocab, itemsize = self.loaded.config.vocab_size, self.loaded.placement.dtype.itemsize
        rows = {RECOMPUTE: NUM_PROMPT + num_tokens - 1, LAST_LOGITS: 1, CACHED: NUM_PROMPT}[arm]
        logits = rows * vocab * itemsize
        assert output >= logits, f"a peak of {output:,} B is less than its logits' {logits:,}"

    def counters(self, output, arm, num_tokens) -> Mapping[str, int]:
        return {"peak_bytes": output}

    def notes(self, output, arm, num_tokens) -> Mapping[str, str]:
        on_cuda = self.lab.placement.device.type == "cuda"
        return {"source": "torch's CUDA allocator" if on_cuda else "tensor tracker at torch's dispatch"}

    def verdict(self, results: Results) -> Verdict:
        lengths = [n for n in LENGTHS if (CACHED, n) in results.usable()] or LENGTHS
        n = lengths[-1]
        peak = {arm: results[arm, n].counters["peak_bytes"] for arm in self.params[0]}
        ratio, without_logits = peak[RECOMPUTE] / peak[CACHED], peak[LAST_LOGITS] / peak[CACHED]
        return Verdict(
            Outcome.HOLDS if ratio > 1 else Outcome.DOES_NOT_HOLD,
            measured=f"{ratio:.2f}x over {n} tokens ({peak[RECOMPUTE]:,} B against {peak[CACHED]:,} B); "
            f"{without_logits:.2f}x when only the last row's logits are made",
            bound="logits of positions nobody reads" if without_logits < 1 < ratio else "",
        )
