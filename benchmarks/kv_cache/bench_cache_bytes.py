"""A6. The KV cache takes 2 x layers x kv heads x head dim x element bytes for each token, to the byte.

Counted: the tensors of the cache that a real prefill leaves behind. Nothing is timed.
"""

from dataclasses import replace

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference.decode import prefill
from bench_utils.inference.kv_cache import bytes_per_token, tensor_bytes
from bench_utils.models import facts, loading, prompts
from bench_utils.models.catalog import CHAPTER_SHAPE

MODEL, CHAPTER = "model at hand", "chapter's model"
# The chapter's 295 tokens first.
SHAPES = ["1 x 295", "4 x 16", "2 x 16"]
CHAPTER_TENSOR, CHAPTER_BYTES, CHAPTER_BYTES_PER_TOKEN = (1, 2, 295, 64), 3_624_960, 12_288


class ClaimCacheBytes(Claim):
    id = "A6"
    title = "cache bytes follow the formula"
    kind = "exact"
    chapter = "12,288 B/token fp16; 295 tokens: (1, 2, 295, 64), 3,624,960 B"
    stated = Stated(counters={(CHAPTER, "float16", SHAPES[0]): {"cache_bytes": CHAPTER_BYTES}})
    timed = False
    tracked = {"cache_bytes": "bytes"}

    param_names = ["subject", "dtype", "sequences"]
    params = [[CHAPTER, MODEL], ["float16", "float32"], SHAPES]

    def skip_reason(self, subject, dtype, sequences) -> str:
        # The chapter's own figures are in float16; its model takes seconds to make once more.
        is_extra = (subject, dtype) == (CHAPTER, "float32")
        return "full profile only" if self.lab.settings.is_quick and is_extra else ""

    def setup(self, subject, dtype, sequences):
        settings = replace(self.lab.settings, dtype=dtype)
        if subject == CHAPTER:
            settings = replace(settings, model=CHAPTER_SHAPE)
        self.loaded = loading.load(settings)
        self.shape = facts.cache_shape(self.loaded.config)
        self.batch, self.length = (int(part) for part in sequences.split(" x "))
        self.prompt = prompts.prompt_ids(self.loaded, self.length, batch=self.batch)

    @torch.inference_mode()
    def run(self, subject, dtype, sequences):
        return prefill(self.loaded.model, self.prompt)[1]

    def check(self, output, subject, dtype, sequences):
        per_token = bytes_per_token(self.shape, getattr(torch, dtype).itemsize)
        expected = per_token * self.batch * self.length
        measured = tensor_bytes(output)
        assert measured == expected, f"the cache holds {measured:,} B, the formula has {expected:,}"
        if (subject, dtype, sequences) == (CHAPTER, "float16", SHAPES[0]):
            tensor = output.layers[0].keys
            assert tuple(tensor.shape) == CHAPTER_TENSOR, f"a tensor of shape {tuple(tensor.shape)}"
            assert measured == CHAPTER_BYTES, f"{measured:,} B, the chapter has {CHAPTER_BYTES:,}"
            assert per_token == CHAPTER_BYTES_PER_TOKEN, f"{per_token:,} B/token"

    def counters(self, output, subject, dtype, sequences) -> Mapping[str, int]:
        return {"cache_bytes": tensor_bytes(output), "num_tokens": self.batch * self.length}

    def verdict(self, results: Results) -> Verdict:
        parts = []
        for subject in (CHAPTER, MODEL):
            for dtype in ("float16", "float32"):
                points = [
                    (found.counters["num_tokens"], found.counters["cache_bytes"])
                    for (name, kind, _), found in results.usable().items()
                    if (name, kind) == (subject, dtype)
                ]
                if len(points) > 1:
                    slope, intercept = line_through(points)
                    parts.append(f"{subject} {dtype}: {slope:,} B/token and {intercept} B besides")
                    assert intercept == 0, f"{subject} {dtype}: {intercept} B that no token explains"
        return Verdict(Outcome.HOLDS, measured="; ".join(parts) or "every cache equals the formula")


def line_through(points):
    """(slope, intercept) in whole bytes of the line that every (tokens, bytes) point must lie on."""
    (few, small), (many, large) = min(points), max(points)
    slope = (large - small) // (many - few)
    intercept = small - slope * few
    for tokens, measured in points:
        assert slope * tokens + intercept == measured, f"{measured:,} B at {tokens} tokens is off the line"
    return slope, intercept
