"""A1. Greedy generation with the KV cache gives the same tokens as without it.

Nothing is timed. Both loops run freely; then both are fed the same tokens and every logit is compared.
"""

from dataclasses import replace

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.agreement import Agreement, compare
from bench_utils.inference.decode import (
    greedy_cached,
    greedy_recompute,
    tokens_fed_cached,
    tokens_fed_recompute,
)
from bench_utils.models import facts, loading, prompts

NUM_PROMPT = 40
NUM_TOKENS = 48
# The finer a dtype the slower on most machines, and the shorter the run that shows its point.
FEWER_TOKENS = {"float64": 12, "float32": 24}
QUICK_TOKENS = 8


class ClaimIdenticalTokens(Claim):
    id = "A1"
    title = "the cache does not change the tokens"
    kind = "exact"
    chapter = "48 of 48 tokens identical"
    timed = False
    tracked = {"tokens_fed": "tokens", "max_logit_difference": "logits"}

    param_names = ["dtype"]
    params = [["float64", "float32", "as run"]]

    def skip_reason(self, dtype) -> str:
        own = self.lab.placement
        if dtype == "as run" and own.dtype_name in self.params[0]:
            return f"the run's dtype is {own.dtype_name}, a case of its own"
        if dtype == "float64" and self.lab.settings.is_quick:
            return "full profile only"
        if dtype == "float64" and own.device.type == "mps":
            return "MPS has no float64"
        return ""

    def setup(self, dtype):
        settings = self.lab.settings
        if dtype != "as run":
            settings = replace(settings, dtype=dtype)
        self.loaded = loading.load(settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        self.prompt = prompts.prompt_ids(self.loaded, NUM_PROMPT)
        self.num_tokens = min(
            FEWER_TOKENS.get(dtype, NUM_TOKENS), QUICK_TOKENS if settings.is_quick else NUM_TOKENS
        )

    def run(self, dtype):
        model = self.loaded.model
        reference = greedy_recompute(model, self.prompt, self.num_tokens)
        cached = greedy_cached(model, self.prompt, self.num_tokens)
        return compare(model, self.prompt, reference, cached)

    def check(self, output: Agreement, dtype):
        assert output.num_tokens == self.num_tokens, output
        assert output.max_difference <= output.tolerance, f"more than rounding: {output}"
        assert output.is_near_tie, f"tokens differ without a tie: {output}"

    def counters(self, output: Agreement, dtype) -> Mapping[str, float]:
        fed = tokens_fed_recompute(NUM_PROMPT, self.num_tokens) + tokens_fed_cached(NUM_PROMPT, self.num_tokens)
        return {
            "tokens_fed": fed,
            "num_tokens": output.num_tokens,
            "num_equal": output.num_equal,
            "max_logit_difference": output.max_difference,
        }

    def notes(self, output: Agreement, dtype) -> Mapping[str, str]:
        return {"agreement": str(output), "dtype": self.loaded.placement.dtype_name}

    def verdict(self, results: Results) -> Verdict:
        parts = []
        for (dtype,), found in results.usable().items():
            name = found.notes["dtype"] if dtype == "as run" else dtype
            parts.append(f"{name}: {found.counters['num_equal']} of {found.counters['num_tokens']}")
        return Verdict(Outcome.HOLDS, measured="; ".join(parts))
