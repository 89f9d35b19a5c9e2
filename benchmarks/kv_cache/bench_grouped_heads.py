"""A8. Grouped-query and multi-query attention divide the KV cache by an integer, and its reading time with it.

Timed: one token's attention over a long cache in all layers of the chapter's model, for 14, 7, 2 and 1 kv heads.
Not timed: the projections and the MLP, which no cache changes, and filling the cache. On a CPU a single kv head
is one matrix product for one core, and can take longer than two heads on two: less memory, not less time.
"""

import torch

from bench_utils.claim import Claim, Mapping, Results, Stated, Verdict, Work
from bench_utils.inference.attention import grouped_step
from bench_utils.inference.kv_cache import bytes_per_token, filled_cache, tensor_bytes
from bench_utils.models.facts import cache_shape
from bench_utils.models.shapes import chapter_config
from bench_utils.verdict import above

MHA, GQA, MQA = 14, 2, 1
NUM_TOKENS, QUICK_TOKENS = 8_192, 1_024
# fp16, from the chapter: 84 KiB with 14 kv heads, 12 KiB with its own 2.
CHAPTER_BYTES_PER_TOKEN = {MHA: 86_016, GQA: 12_288}


class ClaimGroupedHeads(Claim):
    id = "A8"
    title = "GQA and MQA divide the cache by an integer"
    chapter = "86,016 B/token with MHA, 7x the 12,288 of GQA"
    stated = Stated(counters={(MHA,): {"bytes_per_token_fp16": 86_016}, (GQA,): {"bytes_per_token_fp16": 12_288}})
    tracked = {"cache_bytes": "bytes"}

    param_names = ["num_kv_heads"]
    params = [[MHA, 7, GQA, MQA]]

    def setup(self, num_kv_heads):
        placement = self.lab.placement
        self.config = chapter_config(num_kv_heads)
        self.num_tokens = QUICK_TOKENS if self.lab.settings.is_quick else NUM_TOKENS
        self.cache = filled_cache(
            self.config,
            batch=1,
            num_tokens=self.num_tokens,
            dtype=placement.dtype,
            device=placement.device,
            seed=num_kv_heads,
        )
        shape = (1, self.config.num_attention_heads, cache_shape(self.config).head_dim)
        generator = torch.Generator(placement.device).manual_seed(0)
        self.query = torch.randn(shape, generator=generator, dtype=placement.dtype, device=placement.device)

    @torch.inference_mode()
    def run(self, num_kv_heads):
        for layer in self.cache.layers:
            output = grouped_step(self.query, layer.keys, layer.values)
        return output

    @torch.inference_mode()
    def check(self, output, num_kv_heads):
        itemsize = self.lab.placement.dtype.itemsize
        per_token = bytes_per_token(cache_shape(self.config), itemsize)
        measured = tensor_bytes(self.cache)
        assert measured == per_token * self.num_tokens, f"{measured:,} B, {per_token * self.num_tokens:,} expected"
        if (chapter := CHAPTER_BYTES_PER_TOKEN.get(num_kv_heads)) is not None:
            assert measured * 2 == chapter * self.num_tokens * itemsize, f"{measured:,} B, not {chapter:,} B/token"
        last = self.cache.layers[-1]
        reference = torch.nn.functional.scaled_dot_product_attention(
            *(each.cpu().double() for each in (self.query.unsqueeze(2), last.keys, last.values)), enable_gqa=True
        ).squeeze(2)
        # Scores of size 5 round by some spacings, and so do their exponentials, the sum and the output.
        error = float((output.cpu().double() - reference).abs().max())
        tolerance = 32 * torch.finfo(output.dtype).eps * float(reference.abs().max())
        assert error <= tolerance, f"grouped attention differs by {error:.2g}, rounding explains {tolerance:.2g}"

    def counters(self, output, num_kv_heads) -> Mapping[str, int]:
        measured = tensor_bytes(self.cache)
        num_elements = measured // self.lab.placement.dtype.itemsize
        return {"cache_bytes": measured, "bytes_per_token_fp16": num_elements * 2 // self.num_tokens}

    def work(self, output, num_kv_heads) -> Work:
        shape = cache_shape(self.config)
        products = 2 * shape.num_layers * self.config.num_attention_heads * shape.head_dim * self.num_tokens
        moved = tensor_bytes(self.cache)
        return Work(moved, products, moved, self.lab.placement.dtype_name)

    def teardown(self, num_kv_heads):
        self.cache = None

    def verdict(self, results: Results) -> Verdict:
        per_token = {heads: results[(heads,)].counters["bytes_per_token_fp16"] for heads in (MHA, 7, GQA, MQA)}
        for heads, size in per_token.items():
            assert size * MHA == per_token[MHA] * heads, f"{heads} kv heads: {size:,} B/token is no integer share"
        ratio, to_one = results.ratio((MHA,), (GQA,)), results.ratio((MHA,), (MQA,))
        sizes = ", ".join(f"{size:,}" for size in per_token.values())
        return Verdict(
            above(ratio, 1.0),
            measured=f"{sizes} B/token with 14, 7, 2, 1 kv heads (fp16); reading MHA's cache takes "
            f"{ratio.format('.2f', 'x')} as long as GQA's, {to_one.format('.2f', 'x')} as MQA's",
            predicted=f"{MHA // GQA}x and {MHA // MQA}x where memory bounds them",
            bound=f"MHA: {results.bound(MHA)}; GQA: {results.bound(GQA)}",
            figures={"mha_over_gqa_time": ratio, "mha_over_mqa_time": to_one},
        )
