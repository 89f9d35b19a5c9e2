"""B4. Time to first token is prefill and grows with the prompt; the time between tokens does not.

Timed: streams of one prompt after another, the first token and each gap after it as laps of the same runs. The
prompt's pass makes the last position's logits only; then each token is one step in place, as the engine decodes.
"""

from dataclasses import replace
from itertools import pairwise

import torch

from bench_utils.claim import Claim, Mapping, Results, Verdict, Work
from bench_utils.inference import agreement
from bench_utils.inference.decode import prefill, tokens_fed_cached
from bench_utils.inference.row_cache import RowCache, ragged_step
from bench_utils.measure import statistics
from bench_utils.measure.sampler import Budget
from bench_utils.models import facts, loading, prompts
from bench_utils.step_work import decode_bytes, decode_work, prefill_work
from bench_utils.verdict import MARGIN, above, all_of, at_most

LENGTHS, QUICK_LENGTHS = [16, 64, 256, 512], [16, 64, 256]
NUM_TOKENS = 5
# The first token is prefill where this much of its time is.
MOSTLY = 0.9


class ClaimStreaming(Claim):
    id = "B4"
    title = "the prompt delays the first token, not the others"
    chapter = "TTFT grows with the prompt, 1/step does not"
    tracked = {"tokens_fed": "tokens"}

    param_names = ["num_tokens"]
    params = [[NUM_TOKENS]]

    def setup(self, num_tokens):
        self.loaded = loading.load(self.lab.settings)
        facts.demand_dense(self.loaded.config)  # only where the bytes of a step are known
        self.lengths = QUICK_LENGTHS if self.lab.settings.is_quick else LENGTHS
        placement = self.loaded.placement
        self.prompts = {n: prompts.prompt_ids(self.loaded, n, seed=i) for i, n in enumerate(self.lengths)}
        self.rows = RowCache(
            self.loaded.config,
            num_rows=1,
            max_tokens=self.lengths[-1] + num_tokens,
            dtype=placement.dtype,
            device=placement.device,
        )

    @torch.inference_mode()
    def run(self, num_tokens):
        return {length: self._stream(prompt, num_tokens) for length, prompt in self.prompts.items()}

    def _stream(self, prompt, num_tokens):
        length = prompt.shape[1]
        with self.lab.laps.lap(_first(length)):
            with self.lab.laps.lap(_prefill(length)):
                logits, cache = prefill(self.loaded.model, prompt, last_logits_only=True)
            self.rows.write(0, cache)
            tokens = [int(logits[0, -1].argmax())]
        for position in range(length, length + num_tokens - 1):
            with self.lab.laps.lap(_gap(length)):
                token = torch.tensor(tokens[-1:], device=prompt.device)
                logits = ragged_step(self.loaded.model, token, self.rows.step([position]))
                tokens.append(int(logits[0].argmax()))
        return tokens

    def check(self, output, num_tokens):
        for length, tokens in output.items():
            assert len(tokens) == num_tokens, f"{len(tokens)} tokens after {length}, {num_tokens} wanted"
        device = self.loaded.placement.device
        generated = {length: torch.tensor([tokens], device=device) for length, tokens in output.items()}
        pairs = [(self.prompts[length], tokens) for length, tokens in generated.items()]
        agreement.assert_greedy(self.loaded.model, pairs)

    def counters(self, output, num_tokens) -> Mapping[str, int]:
        moved = {f"step_bytes_{n}": decode_bytes(self.loaded, [n + num_tokens // 2]) for n in self.lengths}
        return {"tokens_fed": sum(tokens_fed_cached(n, num_tokens) for n in self.lengths), **moved}

    def lap_work(self, output, num_tokens) -> Mapping[str, Work]:
        works = {_first(n): prefill_work(self.loaded, n) for n in self.lengths}
        works |= {_gap(n): decode_work(self.loaded, [n + num_tokens // 2]) for n in self.lengths}
        return {name: work for name, work in works.items() if work is not None}

    def budget(self, default: Budget) -> Budget:
        return replace(default, max_time_s=default.max_time_s * 1.2)  # seven runs, for an interval of their own

    def teardown(self, num_tokens):
        self.rows = None

    def verdict(self, results: Results) -> Verdict:
        laps, counted = results.laps(NUM_TOKENS), results[(NUM_TOKENS,)].counters
        lengths = [n for n in LENGTHS if _first(n) in laps]
        grows = [results.paired_ratio(_first(b), _first(a), NUM_TOKENS) for a, b in pairwise(lengths)]
        shortest, longest = lengths[0], lengths[-1]
        gap_growth = results.paired_ratio(_gap(longest), _gap(shortest), NUM_TOKENS)
        of_first = results.paired_ratio(_prefill(longest), _first(longest), NUM_TOKENS)
        predicted = counted[f"step_bytes_{longest}"] / counted[f"step_bytes_{shortest}"]

        def shown_ms(lap) -> str:
            medians = (statistics.median(results.lap_s(lap(n), NUM_TOKENS)).value for n in lengths)
            return ", ".join(f"{1e3 * seconds:.3g}" for seconds in medians)

        return Verdict(
            all_of(
                [
                    *(above(ratio, 1.0) for ratio in grows),
                    above(of_first, MOSTLY),
                    at_most(gap_growth, predicted * (1 + MARGIN)),
                ]
            ),
            measured=f"prompts of {', '.join(map(str, lengths))}: first token after {shown_ms(_first)} ms "
            f"({of_first.value:.0%} of it prefill), "
            f"the others {shown_ms(_gap)} ms apart ({gap_growth.format('.3f', 'x')})",
            predicted=f"gaps {predicted:.3f}x by bytes",
            bound=f"first: {results.lap_bound(_first(longest), NUM_TOKENS)}; "
            f"others: {results.lap_bound(_gap(longest), NUM_TOKENS)}",
            figures={"gap_growth": gap_growth, "first_token_growth": grows[-1], "prefill_of_first_token": of_first},
        )


def _prefill(length: int) -> str:
    return f"prefill of {length}"


def _first(length: int) -> str:
    return f"first token after {length}"


def _gap(length: int) -> str:
    return f"next tokens after {length}"
