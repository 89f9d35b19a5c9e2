"""C2. On the same requests continuous batching beats static batching, in throughput and in mean latency.

Timed: the decode step of 1 to 8 sequences in place, laps of the same runs. Both schedulers are then simulated at
these costs; prompts cost nothing here, as in the chapter, and are paid for in C3. Requests come all at once, where
both measures count; at random (Poisson) at four fifths of what static batching can serve, and as a trace of the
user's says, where both serve what comes and only latency tells them apart. Exact, were all of them there at once:
every seat of every step is used, padding or idle.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict, Work
from bench_utils.inference.requests import (
    CHAPTER_LENGTHS,
    CHAPTER_PROMPT,
    Request,
    all_at_once,
    poisson,
    read_trace,
)
from bench_utils.inference.row_cache import RowCache, ragged_step
from bench_utils.inference.scheduling import CONTINUOUS, STATIC
from bench_utils.inference.simulator import Simulated, Span, StepCosts, simulate
from bench_utils.measure.statistics import Interval, over_runs
from bench_utils.models import facts, loading
from bench_utils.step_work import decode_work
from bench_utils.verdict import above, all_of

NUM_SEATS = 8
AT_ONCE, POISSON, TRACE = "all at once", "Poisson", "trace"
# The chapter's requests come round this often, at this share of what static batching can serve.
NUM_ROUNDS, LOAD, SEED = 16, 0.8, 13
# The verdict simulates again and again: of a long trace its beginning.
MOST_OF_A_TRACE = 2_000
NUM_RESAMPLES = {AT_ONCE: 200, POISSON: 100, TRACE: 100}
SHOWN = {"throughput": "throughput", "mean_latency": "mean latency", "p99_latency": "p99"}
IN_STEPS = StepCosts([1.0] * NUM_SEATS)
POLICIES = (STATIC, CONTINUOUS)


class ClaimSchedulers(Claim):
    id = "C2"
    title = "continuous batching beats static batching"
    chapter = "throughput 1.6x, mean latency over 10x better"
    stated = Stated(figures={"all_at_once_throughput": 1.6})
    tracked = {"static_steps": "steps", "continuous_steps": "steps"}

    param_names = ["arrivals"]
    params = [[AT_ONCE, POISSON, TRACE]]

    def skip_reason(self, arrivals) -> str:
        if arrivals == TRACE and not self.lab.settings.trace:
            return "no --claims-trace FILE was given"
        return ""

    def setup(self, arrivals):
        self.loaded = loading.load(self.lab.settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        placement = self.loaded.placement
        context = CHAPTER_PROMPT + sum(CHAPTER_LENGTHS) // (2 * len(CHAPTER_LENGTHS))  # halfway through a request
        rows = RowCache(
            self.loaded.config,
            num_rows=NUM_SEATS,
            max_tokens=context + 1,
            dtype=placement.dtype,
            device=placement.device,
        )
        self.contexts = {n: [context] * n for n in range(1, NUM_SEATS + 1)}
        self.steps = {n: rows.step(contexts) for n, contexts in self.contexts.items()}
        self.tokens = torch.arange(NUM_SEATS, device=placement.device)

    @torch.inference_mode()
    def run(self, arrivals):
        logits = []
        for n, step in self.steps.items():
            with self.lab.laps.lap(str(n)):
                logits.append(ragged_step(self.loaded.model, self.tokens[:n], step))
        return logits

    def check(self, output, arrivals):
        assert [len(logits) for logits in output] == list(self.steps), "a step for each number of sequences"
        static, continuous = self._in_steps(arrivals)
        for found in (static, continuous):
            seat_steps = found.num_steps * NUM_SEATS
            accounted = found.useful_seat_steps + found.padded_seat_steps + found.idle_seat_steps
            assert accounted == seat_steps, f"{found.policy.name}: {accounted:,} seat-steps of {seat_steps:,}"
            assert found.useful_seat_steps == found.num_tokens, (
                f"{found.useful_seat_steps:,} of {found.num_tokens:,}"
            )
        if arrivals == AT_ONCE:
            longest = sum(max(batch) for batch in _batches(CHAPTER_LENGTHS))
            assert static.num_steps == longest, f"{static.num_steps} static steps, {longest} expected"
            # A static batch's utilisation is sum(len) / (B max(len)).
            assert static.utilisation == sum(CHAPTER_LENGTHS) / (NUM_SEATS * longest), static.utilisation

    def requests(self, arrivals, rate_per_s: float, seed: int = SEED) -> Iterable[Request]:
        """The requests of a case; random ones come at this rate, another time with another seed."""
        if arrivals == TRACE:
            return itertools.islice(read_trace(Path(self.lab.settings.trace)), MOST_OF_A_TRACE)
        if arrivals == AT_ONCE:
            return all_at_once()
        num_requests = NUM_ROUNDS * len(CHAPTER_LENGTHS)
        return poisson(CHAPTER_LENGTHS, rate_per_s, num_requests=num_requests, seed=seed)

    def _in_steps(self, arrivals) -> list[Simulated]:
        """Both policies were all requests there at once, every step taking 1: exact, on every machine."""
        lengths = [request.num_tokens for request in self.requests(arrivals, 1.0)]
        return [simulate(all_at_once(lengths), policy, NUM_SEATS, IN_STEPS) for policy in POLICIES]

    def counters(self, output, arrivals) -> Mapping[str, int]:
        counted = {}
        for found in self._in_steps(arrivals):
            name = found.policy.name
            counted |= {
                f"{name}_steps": found.num_steps,
                f"{name}_useful_seat_steps": found.useful_seat_steps,
                f"{name}_padded_seat_steps": found.padded_seat_steps,
                f"{name}_idle_seat_steps": found.idle_seat_steps,
            }
        return counted

    def notes(self, output, arrivals) -> Mapping[str, str]:
        if arrivals == TRACE:
            is_longer = next(
                itertools.islice(read_trace(Path(self.lab.settings.trace)), MOST_OF_A_TRACE, None), None
            )
            return {"cut": f", its first {MOST_OF_A_TRACE:,} requests"} if is_longer else {}
        if arrivals == POISSON:
            return {}
        # Who sits where, in steps, ready to be drawn: [seat, request, seated, done, left].
        timelines: dict[str, list[Span]] = {policy.name: [] for policy in POLICIES}
        for policy in POLICIES:
            simulate(all_at_once(), policy, NUM_SEATS, IN_STEPS, timelines[policy.name].append)
        return {f"timeline_{name}": json.dumps(spans) for name, spans in timelines.items()}

    def lap_work(self, output, arrivals) -> Mapping[str, Work]:
        works = {str(n): decode_work(self.loaded, contexts) for n, contexts in self.contexts.items()}
        return {name: work for name, work in works.items() if work is not None}

    def teardown(self, arrivals):
        self.steps = {}

    def verdict(self, results: Results) -> Verdict:
        outcomes, parts, figures = [], [], {}
        for (arrivals,) in results.usable():
            found = _compared(self, results, arrivals)
            figures |= {f"{arrivals.replace(' ', '_')}_{name}": figure for name, figure in found.items()}
            outcomes += _judged(arrivals, found)
            better = ", ".join(f"{words} {found[name].format('.3g', 'x')}" for name, words in SHOWN.items())
            used, rates = (
                " and ".join(f"{found[f'{policy.name}_{name}'].value:{spec}}" for policy in POLICIES)
                for name, spec in (("used", ".0%"), ("tok_per_s", ".0f"))
            )
            cut = results[(arrivals,)].notes.get("cut", "")
            parts.append(f"{arrivals}{cut}: {better} ({rates} tok/s, {used} of the seats used)")
        steps = " against ".join(f"{results[(AT_ONCE,)].counters[f'{policy.name}_steps']:,}" for policy in POLICIES)
        return Verdict(
            all_of(outcomes),
            measured="; ".join([*parts, f"{steps} steps for the chapter's requests"]),
            bound=f"{NUM_SEATS} seats: {results.lap_bound(str(NUM_SEATS), AT_ONCE)}",
            figures=figures,
        )


def _judged(arrivals: str, found: Mapping[str, Interval]) -> list[Outcome]:
    """What must be better: both where requests queue; latency where they come bit by bit; on a trace no worse."""
    if arrivals == AT_ONCE:
        return [above(found["throughput"], 1.0), above(found["mean_latency"], 1.0)]
    if arrivals == TRACE and found["mean_latency"].low >= 1.0:
        return [Outcome.HOLDS]
    return [above(found["mean_latency"], 1.0)]


def _compared(claim: ClaimSchedulers, results: Results, arrivals: str) -> dict[str, Interval]:
    """How much better continuous batching serves at the measured costs, over the runs and over random arrivals."""
    laps = [results.lap_s(str(n), arrivals) for n in range(1, NUM_SEATS + 1)]
    seeds = itertools.count(SEED)

    def compare(runs: Sequence[int]) -> dict[str, float]:
        costs = StepCosts([median(lap[run] for run in runs) for lap in laps])
        rate = LOAD * len(CHAPTER_LENGTHS) / simulate(all_at_once(), STATIC, NUM_SEATS, costs).makespan_s
        requests = list(claim.requests(arrivals, rate, next(seeds)))
        static, continuous = (simulate(requests, policy, NUM_SEATS, costs) for policy in POLICIES)
        figures = {
            "throughput": continuous.tokens_per_s / static.tokens_per_s,
            "mean_latency": static.latency.mean_s / continuous.latency.mean_s,
            "p50_latency": static.latency.quantile_s(0.5) / continuous.latency.quantile_s(0.5),
            "p99_latency": static.latency.quantile_s(0.99) / continuous.latency.quantile_s(0.99),
        }
        for found in (static, continuous):
            figures |= {f"{found.policy.name}_{name}": figure for name, figure in _served(found).items()}
        return figures

    return over_runs(len(laps[0]), compare, NUM_RESAMPLES[arrivals])


def _served(found: Simulated) -> dict[str, float]:
    """What one policy makes of the requests."""
    return {
        "tok_per_s": found.tokens_per_s,
        "mean_latency_s": found.latency.mean_s,
        "p50_latency_s": found.latency.quantile_s(0.5),
        "p99_latency_s": found.latency.quantile_s(0.99),
        "used": found.utilisation,
    }


def _batches(lengths: Sequence[int]) -> list[Sequence[int]]:
    return [lengths[first : first + NUM_SEATS] for first in range(0, len(lengths), NUM_SEATS)]
