"""A7. The KV cache's size depends on the number of resident tokens only, not on how users share them.

Counted: three real caches of the chapter's shape, allocated in full where memory allows. Nothing is timed.
"""

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.devices import free_bytes
from bench_utils.inference.kv_cache import filled_cache, tensor_bytes
from bench_utils.models.shapes import chapter_config

SPLITS = ["32 x 2048", "64 x 1024", "128 x 512"]
NUM_TOKENS = 65_536
CHAPTER_BYTES = 768 * 2**20
# While a layer is added, its tensors exist twice; anything else on the machine wants room too.
HEADROOM = 2


class ClaimResidentTokens(Claim):
    id = "A7"
    title = "the cache depends on resident tokens only"
    kind = "exact"
    chapter = "32 x 2,048 = 64 x 1,024 = 128 x 512 tokens = 768 MiB"
    stated = Stated(counters={(split,): {"cache_bytes": CHAPTER_BYTES} for split in SPLITS})
    timed = False
    tracked = {"cache_bytes": "bytes"}

    param_names = ["users_x_tokens"]
    params = [SPLITS]

    def setup(self, users_x_tokens):
        free = free_bytes(self.lab.placement.device)
        self.users, self.length = (int(part) for part in users_x_tokens.split(" x "))
        self.scale = 1
        while CHAPTER_BYTES * HEADROOM // self.scale > free:
            self.scale *= 2
        if self.length < self.scale:
            self.not_applicable(f"{free:,} B free hold no cache of {self.users} users")

    def run(self, users_x_tokens):
        return filled_cache(
            chapter_config(),
            batch=self.users,
            num_tokens=self.length // self.scale,
            dtype=torch.float16,
            device=self.lab.placement.device,
        )

    def check(self, output, users_x_tokens):
        measured = tensor_bytes(output)
        assert self.users * self.length == NUM_TOKENS
        assert measured * self.scale == CHAPTER_BYTES, (
            f"{users_x_tokens} (1/{self.scale}): {measured:,} B, expected {CHAPTER_BYTES // self.scale:,}"
        )

    def counters(self, output, users_x_tokens) -> Mapping[str, int]:
        return {"cache_bytes": tensor_bytes(output), "num_tokens": NUM_TOKENS // self.scale}

    def notes(self, output, users_x_tokens) -> Mapping[str, str]:
        return {"scale": "full size" if self.scale == 1 else f"1/{self.scale} of the tokens: memory is short"}

    def verdict(self, results: Results) -> Verdict:
        found = [results[(split,)] for split in SPLITS]
        sizes = {f.counters["cache_bytes"] / f.counters["num_tokens"] for f in found}
        assert len(sizes) == 1, f"bytes per token differ: {sorted(sizes)}"
        mebibytes = " = ".join(f"{f.counters['cache_bytes'] / 2**20:g}" for f in found)
        scales = {f.notes["scale"] for f in found}
        return Verdict(Outcome.HOLDS, measured=f"{mebibytes} MiB three ways ({', '.join(sorted(scales))})")
