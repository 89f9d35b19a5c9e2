"""A9. A 7B-class model's cache takes 128 KiB a token in fp16, and outweighs the model before 128,000 tokens.

Counted: caches of the model's own class at each context, laid out without memory (their sizes are exact); the
chapter's 7 x 10^9 parameters at two bytes stand for the weights. Nothing is timed.
"""

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference.kv_cache import (
    bytes_per_token,
    filled_cache,
    tensor_bytes,
    tokens_where_cache_outweighs,
)
from bench_utils.models.facts import cache_shape
from bench_utils.models.shapes import seven_b_class_config

WEIGHT_BYTES = 7_000_000_000 * 2
BYTES_PER_TOKEN = 128 * 2**10
CROSSING = tokens_where_cache_outweighs(WEIGHT_BYTES, BYTES_PER_TOKEN)
CONTEXTS = [1_000, 8_000, 32_000, CROSSING - 1, CROSSING, 128_000]
GIB = 2**30


class ClaimLongContext(Claim):
    id = "A9"
    title = "a 7B-class user's cache can outweigh the model"
    kind = "exact"
    chapter = "128 KB/token; at 128,000 tokens 15.6 GiB of cache against 13.0 of weights"
    stated = Stated(
        counters={(CONTEXTS[-1],): {"cache_bytes": 128_000 * BYTES_PER_TOKEN, "weight_bytes": WEIGHT_BYTES}}
    )
    timed = False
    tracked = {"cache_bytes": "bytes"}

    param_names = ["context"]
    params = [CONTEXTS]

    def run(self, context):
        return filled_cache(seven_b_class_config(), batch=1, num_tokens=context, dtype=torch.float16, device="meta")

    def check(self, output, context):
        measured = tensor_bytes(output)
        formula = context * bytes_per_token(cache_shape(seven_b_class_config()), torch.float16.itemsize)
        assert measured == formula == context * BYTES_PER_TOKEN, f"{measured:,} B of cache, {formula:,} by formula"
        assert (measured > WEIGHT_BYTES) == (context >= CROSSING), f"{measured:,} B of cache at {context:,} tokens"

    def counters(self, output, context) -> Mapping[str, int]:
        return {"cache_bytes": tensor_bytes(output), "weight_bytes": WEIGHT_BYTES}

    def verdict(self, results: Results) -> Verdict:
        longest = results[(CONTEXTS[-1],)].counters["cache_bytes"]
        crossing = next(
            context
            for (context,), found in sorted(results.usable().items())
            if found.counters["cache_bytes"] > WEIGHT_BYTES
        )
        results[(crossing - 1,)]  # the last context that does not outweigh was counted too
        return Verdict(
            Outcome.HOLDS,
            measured=f"{BYTES_PER_TOKEN:,} B/token; from {crossing:,} tokens on the cache outweighs the model; "
            f"{longest / GIB:.3f} GiB at {CONTEXTS[-1]:,} against {WEIGHT_BYTES / GIB:.3f} of weights",
        )
