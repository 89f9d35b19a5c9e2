"""H1. The tokens that fit are (memory - overhead - weights) / cache bytes per token, over all users at once.

Counted: the chapter's table for its 7B, 13B and 70B classes, to the token; and the model at hand, whose predicted
weights and cache are held against its own tensors. Nothing is timed.
"""

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference.capacity import CHAPTER_CLASSES, FORMATS, OVERHEAD_BYTES, Capacity, size_of
from bench_utils.inference.kv_cache import tensor_bytes
from bench_utils.models import loading
from bench_utils.models.cache_layout import cache_layout
from bench_utils.pictures import table

AT_HAND = "model at hand"
STORED = ["fp16", "int8", "int4"]
SIZES_GIB = [8, 16, 24]
# The chapter's table: tokens by class and memory, in the order of STORED; 0: the weights do not fit.
CHAPTER_TOKENS = {
    ("7b", 8): (0, 0, 25_710),
    ("7b", 16): (11_972, 65_378, 91_246),
    ("7b", 24): (77_508, 130_914, 156_782),
    ("13b", 8): (0, 0, 337),
    ("13b", 16): (0, 3_136, 10_822),
    ("13b", 24): (0, 13_622, 21_308),
    **{("70b", size): (0, 0, 0) for size in SIZES_GIB},
}
# What the model at hand may be loaded in.
BY_ELEMENT_BYTES = {2: "fp16", 4: "fp32"}
NUM_SEEN = 24  # tokens of the model's real cache, enough to fill one that a test's window forgets


class ClaimFit(Claim):
    id = "H1"
    title = "what fits is a subtraction and a division"
    kind = "exact"
    chapter = "8 GB: 13B int4 337 tokens; 16 GB: 7B int8 65,378, 13B int8 3,136"
    stated = Stated(
        counters={
            case: {f"tokens_{name}": num for name, num in zip(STORED, tokens, strict=True)}
            for case, tokens in CHAPTER_TOKENS.items()
        }
    )
    timed = False
    tracked = {"weight_bytes": "bytes", "token_bytes": "bytes"}

    param_names = ["model", "memory_gib"]
    params = [[*CHAPTER_CLASSES, AT_HAND], SIZES_GIB]

    def setup(self, model, memory_gib):
        if model != AT_HAND:
            self.size = CHAPTER_CLASSES[model]
            return
        self.loaded = loading.load(self.lab.settings)
        cache_layout(self.loaded.config)  # only a cache that is understood
        self.size = size_of(self.loaded.config, AT_HAND)

    def run(self, model, memory_gib):
        return {
            name: Capacity(memory_gib * 2**30, self.size.weights.num_bytes(FORMATS[name]), self.size.layout)
            for name in STORED
        }

    def check(self, output, model, memory_gib):
        for name, capacity in output.items():
            most = capacity.longest_context()
            if most is None:
                continue
            # The answer by its meaning, not by the formula: so many fit, and one more does not.
            taken = OVERHEAD_BYTES + capacity.weight_bytes
            assert most == 0 or taken + capacity.sequence_bytes(most) <= capacity.memory_bytes, f"{name}: {most:,}"
            assert taken + capacity.sequence_bytes(most + 1) > capacity.memory_bytes, f"{name}: {most:,} is too few"
        if model == AT_HAND:
            self._hold_against_tensors()
        else:
            found = tuple(capacity.num_tokens for capacity in output.values())
            assert found == CHAPTER_TOKENS[model, memory_gib], f"{found} tokens in {', '.join(STORED)}"

    @torch.inference_mode()
    def _hold_against_tensors(self):
        element_bytes = self.loaded.placement.dtype.itemsize
        if stored := BY_ELEMENT_BYTES.get(element_bytes):
            real, counted = self.loaded.weight_bytes, self.size.weights.num_bytes(FORMATS[stored])
            assert real == counted, f"{real:,} B of weights, {counted:,} counted"
        ids = torch.zeros(1, NUM_SEEN - 1, dtype=torch.long, device=self.loaded.placement.device)
        cache = self.loaded.model(ids, use_cache=True).cache
        # A window lets go of the prompt in the step after it.
        real = tensor_bytes(self.loaded.model(ids[:, :1], cache=cache, use_cache=True).cache)
        counted = self.size.layout.bytes(NUM_SEEN, element_bytes)
        assert real == counted, f"{real:,} B of cache, {counted:,} counted"

    def counters(self, output, model, memory_gib) -> Mapping[str, int]:
        tokens = {f"tokens_{name}": capacity.longest_context() for name, capacity in output.items()}
        return {
            "weight_bytes": output["fp16"].weight_bytes,
            "token_bytes": self.size.layout.token_bytes(output["fp16"].element_bytes),
            **{name: num for name, num in tokens.items() if num is not None},
        }

    def verdict(self, results: Results) -> Verdict:
        counted = {case: found.counters for case, found in results.usable().items()}
        thirteen, seven = results[("13b", 16)].counters, results[("7b", 16)].counters
        rows = [
            (str(model), f"{memory} GiB", *(_tokens(found, name) for name in STORED))
            for (model, memory), found in counted.items()
        ]
        return Verdict(
            Outcome.HOLDS,
            measured=f"8 GiB: 13b int4 {results[('13b', 8)].counters['tokens_int4']:,}; 16 GiB: 7b int8 "
            f"{seven['tokens_int8']:,}, 13b int8 {thirteen['tokens_int8']:,}, whose cache takes "
            f"{thirteen['token_bytes'] / seven['token_bytes']:.2f}x as much a token",
            picture="Tokens of cache that fit beside the weights\n" + table(["model", "memory", *STORED], rows),
        )


def _tokens(counters, name):
    num = counters.get(f"tokens_{name}")
    return "any" if num is None else f"{num:,}" if num else "none"
