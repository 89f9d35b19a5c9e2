"""B1. A token of the prompt is cheaper than a generated one.

Timed: the prompt's pass and each decode step after it, as laps of the same runs. Not timed: loading, tokenizing.
"""

from dataclasses import astuple
from statistics import median

import torch

from bench_utils.claim import Claim, Mapping, Results, Stated, Verdict, Work
from bench_utils.inference.decode import decode_step, prefill, tokens_fed_cached
from bench_utils.measure.statistics import Interval
from bench_utils.models import facts, loading, prompts
from bench_utils.step_work import decode_work, prefill_work
from bench_utils.verdict import above

NUM_PROMPT, NUM_TOKENS = 40, 17
PREFILL, DECODE = "prefill", "decode"


class ClaimPromptToken(Claim):
    id = "B1"
    title = "a prompt token is cheaper than a generated one"
    chapter = "25.6 against 166.5 ms a token, 6.5x"
    stated = Stated(
        figures={"decode_over_prompt_token": 6.5}, laps_s={(NUM_PROMPT,): {"prefill": 1.0224, "decode": 0.1665}}
    )
    tracked = {"tokens_fed": "tokens"}

    param_names = ["num_prompt"]
    params = [[NUM_PROMPT]]

    def setup(self, num_prompt):
        self.loaded = loading.load(self.lab.settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        self.prompt = prompts.prompt_ids(self.loaded, num_prompt)

    @torch.inference_mode()
    def run(self, num_prompt):
        with self.lab.laps.lap(PREFILL):
            logits, cache = prefill(self.loaded.model, self.prompt, last_logits_only=True)
            token = logits[:, -1:].argmax(-1)
        tokens = [token]
        for _ in range(NUM_TOKENS - 1):
            with self.lab.laps.lap(DECODE):
                token = decode_step(self.loaded.model, token, cache)[:, -1:].argmax(-1)
            tokens.append(token)
        return torch.cat(tokens, dim=1), cache.get_seq_length()

    def check(self, output, num_prompt):
        tokens, num_cached = output
        assert tokens.shape == (1, NUM_TOKENS), f"{tuple(tokens.shape)} tokens, {NUM_TOKENS} wanted"
        fed = tokens_fed_cached(num_prompt, NUM_TOKENS)
        assert num_cached == fed, f"{num_cached} tokens in the cache, {fed} were fed"

    def counters(self, output, num_prompt) -> Mapping[str, int]:
        return {"tokens_fed": tokens_fed_cached(num_prompt, NUM_TOKENS), "num_tokens": NUM_TOKENS}

    def lap_work(self, output, num_prompt) -> Mapping[str, Work]:
        middle = num_prompt + (NUM_TOKENS - 1) // 2  # the median step's context
        found = {PREFILL: prefill_work(self.loaded, num_prompt), DECODE: decode_work(self.loaded, [middle])}
        return {name: work for name, work in found.items() if work is not None}

    def verdict(self, results: Results) -> Verdict:
        per_prompt = results.paired_ratio(DECODE, PREFILL, NUM_PROMPT)
        ratio = Interval(*(each * NUM_PROMPT for each in astuple(per_prompt)))
        prompt_ms = 1e3 * median(results.lap_s(PREFILL, NUM_PROMPT)) / NUM_PROMPT
        decode_ms = 1e3 * median(results.lap_s(DECODE, NUM_PROMPT))
        bounds = (f"{lap}: {results.lap_bound(lap, NUM_PROMPT)}" for lap in (PREFILL, DECODE))
        return Verdict(
            above(ratio, 1.0),
            measured=f"{prompt_ms:.3g} against {decode_ms:.3g} ms a token, {ratio.format('.2f', 'x')}",
            bound="; ".join(bounds),
            figures={"decode_over_prompt_token": ratio},
        )
