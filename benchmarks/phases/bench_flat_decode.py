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
from bench_utils.inference import agreement, captured
from bench_utils.inference.decode import decode_step, prefill
from bench_utils.inference.row_cache import RowCache, ragged_step
from bench_utils.measure import counters
from bench_utils.measure.sampler import Budget
from bench_utils.models import facts, loading, prompts
from bench_utils.step_work import decode_bytes, decode_work
from bench_utils.verdict import as_predicted

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
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        self.contexts = QUICK_CONTEXTS if self.lab.settings.is_quick else CONTEXTS
        self.tokens = prompts.prompt_ids(self.loaded, self.contexts[-1] + 1)
        self.steps = {context: self._step(arm, context) for context in self.contexts}

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

        return captured.capture(run) if arm == CAPTURED else run, lambda: None

    @torch.inference_mode()
    def run(self, arm):
        logits = {}
        for context, (step, restore) in self.steps.items():
            with self.lab.laps.lap(str(context)):
                logits[context] = step()
            restore()
        return logits

    def check(self, output, arm):
        context = self.contexts[1]
        sequence = self.tokens[:, : context + 1]
        own = agreement.logits_in(self.loaded.model, self.loaded.placement.dtype, sequence)
        tolerance = agreement.rounding_tolerance(self.loaded.model, sequence, own)
        difference = float((output[context][0].cpu().double() - own[-1]).abs().max())
        assert difference <= tolerance, (
            f"a step at {context} tokens differs by {difference:.2g} from a full pass, rounding is {tolerance:.2g}"
        )
        work = decode_work(self.loaded, [context])
        if work is not None and arm != CAPTURED:  # a replay dispatches nothing that could be counted
            step, restore = self.steps[context]
            counted = counters.count(step).macs
            with torch.inference_mode():
                restore()
            assert counted == work.macs, f"counted {counted:,} MACs, the formula has {work.macs:,}"

    def counters(self, output, arm) -> Mapping[str, int]:
        works = {context: decode_work(self.loaded, [context]) for context in self.contexts}
        moved = {context: decode_bytes(self.loaded, [context]) for context in self.contexts}
        counted = {"moved_bytes": sum(moved.values())}
        counted |= {f"moved_bytes_{context}": size for context, size in moved.items()}
        if all(works.values()):
            counted |= {f"macs_{context}": work.macs for context, work in works.items()}
            counted["macs"] = sum(work.macs for work in works.values())
        return counted

    def lap_work(self, output, arm) -> Mapping[str, Work]:
        works = {str(context): decode_work(self.loaded, [context]) for context in self.contexts}
        return {name: work for name, work in works.items() if work is not None}

    def budget(self, default: Budget) -> Budget:
        return replace(default, min_samples=4 * default.min_samples)  # a ratio near one needs its pairs

    def teardown(self, arm):
        self.steps = {}

    def verdict(self, results: Results) -> Verdict:
        arms = [arm for (arm,) in results.usable()]
        judged = CAPTURED if CAPTURED in arms else IN_PLACE
        measured = results[(judged,)]
        shortest, *_, longest = measured.laps
        moved = {context: measured.counters[f"moved_bytes_{context}"] for context in (shortest, longest)}
        predicted = moved[longest] / moved[shortest]
        growth = {arm: results.paired_ratio(longest, shortest, arm) for arm in arms}
        outcome = as_predicted(growth[judged], predicted)
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
