"""B3. A decode step costs the same at any context, as far as the bytes it reads are the same.

A step reads the weights and the cache, so its cost may grow as (weights + cache) does, and no more. Timed: a step
at each context in turn, laps of the same runs; the context is filled outside the timer, every lap starts from it.
Three ways of stepping: transformers' growing cache, which copies itself at every step; rows written in place; and,
on CUDA, the latter captured as a graph, without which launches, not memory, bound a small model's step. Judged on
rows in place, and on CUDA on the captured graph.
"""

from dataclasses import replace

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict, Work
from bench_utils.inference import agreement, macs
from bench_utils.inference.captured import CapturedStep
from bench_utils.inference.decode import decode_step, prefill
from bench_utils.inference.row_cache import RowCache, ragged_step
from bench_utils.measure import counters
from bench_utils.measure.sampler import Budget
from bench_utils.models import facts, loading, prompts
from bench_utils.step_work import decode_bytes, decode_work
from bench_utils.verdict import MARGIN, at_most

CONTEXTS, QUICK_CONTEXTS = [16, 64, 256, 1_024], [16, 64, 256]
GROWING, IN_PLACE, CAPTURED = "growing cache", "rows in place", "captured graph"


class ClaimFlatDecode(Claim):
    id = "B3"
    title = "a decode step costs the same at any context"
    chapter = "16 to 1,024 tokens: no measurable change"
    tracked = {"macs": "MACs", "moved_bytes": "bytes"}

    param_names = ["arm"]
    params = [[GROWING, IN_PLACE, CAPTURED]]

    def skip_reason(self, arm) -> str:
        if arm == CAPTURED and self.lab.placement.device.type != "cuda":
            return "graphs are captured on CUDA only"
        return ""

    @torch.inference_mode()
    def setup(self, arm):
        self.loaded = loading.load(self.lab.settings)
        facts.demand_dense(self.loaded.config)  # only where the bytes of a step are known
        self.contexts = QUICK_CONTEXTS if self.lab.settings.is_quick else CONTEXTS
        self.tokens = prompts.prompt_ids(self.loaded, self.contexts[-1] + 1)
        self.steps = {context: self._step(arm, context) for context in self.contexts}

    @torch.inference_mode()
    def _step(self, arm, context):
        """A step after `context` tokens that can be repeated: (step, what puts its state back)."""
        model, newest = self.loaded.model, self.tokens[:, context : context + 1]
        _, cache = prefill(model, self.tokens[:, :context], last_logits_only=True)
        if arm == GROWING:
            return (lambda: decode_step(model, newest, cache)[:, -1]), lambda: cache.crop(-1)
        placement = self.loaded.placement
        rows = RowCache(
            self.loaded.config,
            num_rows=1,
            max_tokens=context + 1,
            dtype=placement.dtype,
            device=placement.device,
        )
        rows.write(0, cache)
        step = rows.step([context])

        def run():
            return ragged_step(model, newest[:, 0], step)

        return CapturedStep(run) if arm == CAPTURED else run, lambda: None

    @torch.inference_mode()
    def run(self, arm):
        logits = {}
        for context, (step, restore) in self.steps.items():
            with self.lab.laps.lap(str(context)):
                logits[context] = step()
            restore()
        return logits

    def check(self, output, arm):
        steps = {
            f"a step at {context} tokens": (self.tokens[:, : context + 1], output[context][0])
            for context in (self.contexts[0], self.contexts[-1])
        }
        agreement.assert_as_alone(self.loaded.model, steps)
        shape = facts.known_decoder_shape(self.loaded.config)
        context = self.contexts[0]
        step, _ = self._step(IN_PLACE if arm == CAPTURED else arm, context)  # a replay dispatches nothing
        self.macs = counters.count(step).macs
        if shape is not None:
            expected = macs.model_step_macs(shape, context + 1, cached=True)
            assert self.macs == expected, f"counted {self.macs:,} MACs, the formula has {expected:,}"

    def counters(self, output, arm) -> Mapping[str, int]:
        moved = {context: decode_bytes(self.loaded, [context]) for context in self.contexts}
        counted = {f"moved_bytes_{context}": size for context, size in moved.items()}
        works = {context: decode_work(self.loaded, [context]) for context in self.contexts}
        counted |= {f"macs_{context}": work.macs for context, work in works.items() if work is not None}
        return {"moved_bytes": sum(moved.values()), "macs": self.macs, **counted}

    def lap_work(self, output, arm) -> Mapping[str, Work]:
        works = {str(context): decode_work(self.loaded, [context]) for context in self.contexts}
        return {name: work for name, work in works.items() if work is not None}

    def budget(self, default: Budget) -> Budget:
        return replace(default, min_samples=4 * default.min_samples)  # a ratio near one needs its pairs

    def teardown(self, arm):
        self.steps = {}

    def verdict(self, results: Results) -> Verdict:
        captured = results.get_if_any((CAPTURED,))
        judged = CAPTURED if captured is not None else IN_PLACE
        measured = results[(judged,)]
        shortest, *_, longest = results.laps(judged)
        moved = {context: measured.counters[f"moved_bytes_{context}"] for context in (shortest, longest)}
        predicted = moved[longest] / moved[shortest]
        arms = [arm for (arm,) in results.usable()]
        growth = {arm: results.paired_ratio(longest, shortest, arm) for arm in arms}
        outcome = at_most(growth[judged], predicted * (1 + MARGIN))
        reason = ""
        if outcome is Outcome.DOES_NOT_HOLD:
            reason = f"{judged} grows by more than its bytes: bound by {results.lap_bound(longest, judged)}"
        return Verdict(
            outcome,
            measured=f"{shortest} to {longest} tokens: "
            + ", ".join(f"{ratio.format('.3f', 'x')} {arm}" for arm, ratio in growth.items()),
            predicted=f"{predicted:.3f}x by bytes{_by_macs(measured.counters, shortest, longest)}",
            bound="; ".join(f"{arm}: {results.lap_bound(longest, arm)}" for arm in arms),
            reason=reason,
            figures={f"growth_{arm.replace(' ', '_')}": ratio for arm, ratio in growth.items()},
        )


def _by_macs(counted: Mapping[str, float], shortest: str, longest: str) -> str:
    """What the growth would be if arithmetic were the limit, where the architecture is counted."""
    if f"macs_{longest}" not in counted:
        return ""
    return f", {counted[f'macs_{longest}'] / counted[f'macs_{shortest}']:.3f}x by multiply-accumulates"
