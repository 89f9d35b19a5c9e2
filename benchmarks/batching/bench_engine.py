"""C3. On the real model continuous batching serves the same requests sooner, and changes no token.

Timed: serving a set of requests, prompts included, by the engine on contiguous rows (static and continuous) and on
pages; and before it, in the same run, what its simulation needs: a prompt's pass, and a step of 1 to 8 sequences.
The requests are the first of the chapter's set at a quarter of their lengths, each with a prompt of its own.
A request's latency ends with the engine's step that ends it. Exact: the tokens, by one full pass over each request
alone, and the seat-steps, by the simulator.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median

import torch

from bench_utils.claim import Claim, Mapping, Results, Stated, Verdict
from bench_utils.inference import agreement
from bench_utils.inference.decode import prefill
from bench_utils.inference.engine import Engine
from bench_utils.inference.paged_cache import PagedStore
from bench_utils.inference.requests import CHAPTER_LENGTHS, all_at_once
from bench_utils.inference.row_cache import ragged_step
from bench_utils.inference.scheduling import CONTINUOUS, STATIC
from bench_utils.inference.simulator import Simulated, StepCosts, simulate
from bench_utils.inference.stores import RowStore
from bench_utils.measure.sampler import Budget
from bench_utils.measure.statistics import Interval, over_runs, ratio
from bench_utils.models import facts, loading, prompts
from bench_utils.verdict import above, all_of

ON_ROWS, JOINING, ON_PAGES = "static", "continuous", "continuous on pages"
POLICIES = {ON_ROWS: STATIC, JOINING: CONTINUOUS, ON_PAGES: CONTINUOUS}
NUM_SEATS, NUM_PROMPT, BLOCK_SIZE = 8, 16, 16
NUM_REQUESTS, QUICK_REQUESTS = 20, 10
SHORTENED = 4
SERVE, PROMPT, LATENCY = "serve", "prompt", "latency"


class ClaimEngine(Claim):
    id = "C3"
    title = "the same on the real model, and no token changes"
    chapter = "throughput 1.6x, mean latency over 10x better"
    stated = Stated(figures={"throughput": 1.6})
    tracked = {"num_steps": "steps", "num_prefilled": "tokens"}

    param_names = ["arm"]
    params = [[ON_ROWS, JOINING, ON_PAGES]]

    def setup(self, arm):
        self.loaded = loading.load(self.lab.settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        num_requests = QUICK_REQUESTS if self.lab.settings.is_quick else NUM_REQUESTS
        self.lengths = [-(-length // SHORTENED) for length in CHAPTER_LENGTHS[:num_requests]]
        self.prompts = prompts.prompt_ids(self.loaded, NUM_PROMPT, batch=num_requests).tolist()

    def _store(self, arm):
        longest = NUM_PROMPT + max(self.lengths)
        place = {"dtype": self.loaded.placement.dtype, "device": self.loaded.placement.device}
        if arm != ON_PAGES:
            return RowStore(self.loaded.config, num_rows=NUM_SEATS, max_tokens=longest, **place)
        num_blocks = NUM_SEATS * -(-longest // BLOCK_SIZE)
        return PagedStore(self.loaded.config, num_blocks=num_blocks, block_size=BLOCK_SIZE, **place)

    @torch.inference_mode()
    def run(self, arm):
        self._measure_costs(arm)
        engine = Engine(self.loaded.model, self._store(arm), NUM_SEATS, policy=POLICIES[arm])
        clock = self.lab.clock
        pairs = zip(self.prompts, self.lengths, strict=True)
        generations = [engine.submit(prompt, length) for prompt, length in pairs]
        began_s, waiting = clock.now_s(), set(generations)
        with self.lab.laps.lap(SERVE):
            while engine.has_work:
                engine.step()
                gone = {each for each in waiting if each.finish and not engine.holds(each)}
                waiting -= gone
                for _ in gone:
                    self.lab.laps.record(LATENCY, clock.now_s() - began_s)
        return generations, engine.totals

    def _measure_costs(self, arm):
        """Sit down one by one: each prompt's pass, and after each a step of all that sit."""
        store = self._store(arm)
        for key, prompt in enumerate(self.prompts[:NUM_SEATS]):
            with self.lab.laps.lap(PROMPT):
                ids = torch.tensor([prompt], device=self.loaded.placement.device)
                logits, cache = prefill(
                    self.loaded.model, ids, cache=store.admit(key, prompt), last_logits_only=True
                )
                store.fill(key, cache)
                int(logits.argmax())
            with self.lab.laps.lap(_step(key + 1)):
                for each in store.order:
                    store.append(each, 0)
                tokens = torch.zeros(key + 1, dtype=torch.long, device=self.loaded.placement.device)
                ragged_step(self.loaded.model, tokens, store.step()).argmax(-1).tolist()

    def check(self, output, arm):
        generations, totals = output
        lengths = [len(each.tokens) for each in generations]
        assert lengths == self.lengths, f"lengths {lengths}, {self.lengths} wanted"
        served = _simulated(self.lengths, arm, StepCosts([1.0] * NUM_SEATS, lambda _num_prompt: 1.0))
        assert totals.account == served.account, (
            f"{totals.account} steps and used, padded, idle seat-steps, {served.account} simulated"
        )
        device = self.loaded.placement.device
        pairs = [tuple(torch.tensor([ids], device=device) for ids in (g.prompt, g.tokens)) for g in generations]
        self.num_ties = agreement.assert_greedy(self.loaded.model, pairs)

    def counters(self, output, arm) -> Mapping[str, int]:
        _, totals = output
        return {
            "num_requests": len(self.lengths),
            "num_tokens": sum(self.lengths),
            "num_steps": totals.num_steps,
            "num_prefilled": totals.num_prefilled,
            "padded_seat_steps": totals.padded_seat_steps,
            "idle_seat_steps": totals.idle_seat_steps,
        }

    def notes(self, output, arm) -> Mapping[str, str]:
        num_tokens = sum(self.lengths)
        ties = f", {self.num_ties} of them by a near tie" if self.num_ties else ""
        return {"tokens": f"{num_tokens} of {num_tokens} tokens as alone{ties}"}

    def budget(self, default: Budget) -> Budget:
        return replace(default, max_time_s=min(6.0, default.max_time_s))  # seconds a run

    def verdict(self, results: Results) -> Verdict:
        arms = [arm for (arm,) in results.usable()]
        errors = {arm: _error(results, arm) for arm in arms}
        throughput = _ratio(results, SERVE)
        latency = _ratio(results, LATENCY)
        shown = ", ".join(f"{error.format('+.1%')} {arm}" for arm, error in errors.items())
        figures = {"throughput": throughput, "mean_latency": latency}
        figures |= {f"simulated_over_real_{arm.replace(' ', '_')}": error for arm, error in errors.items()}
        return Verdict(
            all_of([above(throughput, 1.0), above(latency, 1.0)]),
            measured=f"{results[(JOINING,)].notes['tokens']}; throughput {throughput.format('.2f', 'x')}, mean "
            f"latency {latency.format('.2f', 'x')} better; simulated against real seconds: {shown}",
            figures=figures,
        )


def _step(num_sequences: int) -> str:
    return f"step of {num_sequences}"


def _simulated(lengths: Sequence[int], arm: str, costs: StepCosts) -> Simulated:
    return simulate(all_at_once(lengths, NUM_PROMPT), POLICIES[arm], NUM_SEATS, costs)


def _error(results: Results, arm: str) -> Interval:
    """How far the simulated time lies from the real one, at the costs measured in the same runs."""
    served_s = results.lap_s(SERVE, arm)
    steps_s = [results.lap_s(_step(n), arm) for n in range(1, NUM_SEATS + 1)]
    prompts_s = results.lap_s(PROMPT, arm)
    num_requests = int(results[(arm,)].counters["num_requests"])
    lengths = [-(-length // SHORTENED) for length in CHAPTER_LENGTHS[:num_requests]]

    def error(runs: Sequence[int]) -> dict[str, float]:
        prompt_s = median(prompts_s[run * NUM_SEATS + i] for run in runs for i in range(NUM_SEATS))
        costs = StepCosts([median(step_s[run] for run in runs) for step_s in steps_s], lambda _num_prompt: prompt_s)
        return {"error": _simulated(lengths, arm, costs).makespan_s / median(served_s[run] for run in runs) - 1}

    return over_runs(len(served_s), error)["error"]


def _ratio(results: Results, lap: str) -> Interval:
    """Static over continuous, of each run's mean."""
    means = {arm: results.lap_by_run_s(lap, arm, middle=mean) for arm in (ON_ROWS, JOINING)}
    return ratio(means[ON_ROWS], means[JOINING])
