"""A2. Generating with the KV cache is faster than without it, and the gap grows with the length.

Timed: the whole generation of the given number of tokens after a 40-token prompt, its prefill included.
Not timed: loading, tokenizing.
"""

from dataclasses import replace

from bench_utils.claim import Claim, Mapping, Results, Stated, Verdict, Work
from bench_utils.inference import macs
from bench_utils.inference.decode import (
    greedy_cached,
    greedy_recompute,
    tokens_fed_cached,
    tokens_fed_recompute,
)
from bench_utils.inference.kv_cache import bytes_per_token
from bench_utils.measure.sampler import Budget
from bench_utils.measure.statistics import quotient
from bench_utils.models import facts, loading, prompts
from bench_utils.verdict import above, all_of

NUM_PROMPT = 40
RECOMPUTE, CACHED = "recompute", "cached"
LENGTHS = [8, 16, 48]


class ClaimSpeedup(Claim):
    id = "A2"
    title = "the cache makes generation faster, more so with length"
    chapter = "9x over 48 tokens after 40 prompt tokens"
    stated = Stated(figures={"speedup_48_tokens": 9.0})
    tracked = {"tokens_fed": "tokens"}

    param_names = ["arm", "num_tokens"]
    params = [[RECOMPUTE, CACHED], LENGTHS]

    def skip_reason(self, arm, num_tokens) -> str:
        # Two lengths tell whether the gap grows, if they are far apart.
        return "full profile only" if self.lab.settings.is_quick and num_tokens == LENGTHS[1] else ""

    def setup(self, arm, num_tokens):
        self.loaded = loading.load(self.lab.settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        self.prompt = prompts.prompt_ids(self.loaded, NUM_PROMPT)

    def run(self, arm, num_tokens):
        generate = greedy_cached if arm == CACHED else greedy_recompute
        return generate(self.loaded.model, self.prompt, num_tokens)

    def check(self, output, arm, num_tokens):
        assert output.shape == (1, num_tokens), f"{tuple(output.shape)} tokens, {num_tokens} wanted"
        assert 0 <= int(output.min()) <= int(output.max()) < self.loaded.config.vocab_size

    def counters(self, output, arm, num_tokens) -> Mapping[str, int]:
        fed = tokens_fed_cached if arm == CACHED else tokens_fed_recompute
        return {"tokens_fed": fed(NUM_PROMPT, num_tokens), "num_tokens": num_tokens}

    def work(self, output, arm, num_tokens) -> Work | None:
        if (shape := facts.known_decoder_shape(self.loaded.config)) is None:
            return None
        contexts = range(NUM_PROMPT, NUM_PROMPT + num_tokens)
        multiplied = sum(macs.model_step_macs(shape, n, cached=arm == CACHED) for n in contexts)
        weights = self.loaded.step_weight_bytes * num_tokens  # read once a step, whatever is fed
        token_bytes = bytes_per_token(shape.cache, self.loaded.placement.dtype.itemsize)
        cache = sum(contexts) * token_bytes if arm == CACHED else 0
        if arm == CACHED:  # the first step is the prompt's
            multiplied += macs.model_step_macs(shape, NUM_PROMPT, cached=False)
            multiplied -= macs.model_step_macs(shape, NUM_PROMPT, cached=True)
        return Work(weights + cache, multiplied, self.loaded.weight_bytes, self.loaded.placement.dtype_name)

    def budget(self, default: Budget) -> Budget:
        # Seconds a run: fewer samples than a step would get, enough for a ratio far from one.
        return replace(default, min_samples=5, max_time_s=min(4.0, default.max_time_s * 2))

    def verdict(self, results: Results) -> Verdict:
        lengths = [n for n in LENGTHS if (CACHED, n) in results.usable()] or LENGTHS
        ratios = {n: results.ratio((RECOMPUTE, n), (CACHED, n)) for n in lengths}
        shortest, longest = ratios[lengths[0]], ratios[lengths[-1]]
        outcomes = [above(ratio, 1.0) for ratio in ratios.values()]
        outcomes.append(above(quotient(longest, shortest), 1.0))
        return Verdict(
            all_of(outcomes),
            measured=", ".join(f"{ratio.format('.2f', 'x')} over {n} tokens" for n, ratio in ratios.items()),
            bound="; ".join(f"{arm}: {results.bound(arm, lengths[-1])}" for arm in (RECOMPUTE, CACHED)),
            figures={f"speedup_{n}_tokens": ratio for n, ratio in ratios.items()},
        )
