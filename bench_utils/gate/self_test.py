"""The self-test: a revision against itself, and against itself made slower, on this machine, by the gate's rule.

One pool of pairs serves them all. It is played through the rule as often as it lasts, each time with pairs that
no other play of the same question used, beside the rules of two other tools on the very same samples.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from bench_utils.gate.figures import Contrast, Figures, Share
from bench_utils.gate.pairs import BASE, HEAD, Arm, Samples
from bench_utils.gate.record import GateRecord, PairSamples
from bench_utils.gate.rule import Rule, State, log_ratio
from bench_utils.gate.trial import trial

IDENTICAL = Contrast(BASE.name, HEAD.name)
SLOWED = tuple(Contrast(f"base for {by:.0%}", f"head {by:.0%} slower", by) for by in (0.05, 0.10, 0.20))
# Each contrast is sampled as a gate's only one is.
ARMS = tuple(
    (Arm(each.base, BASE.process), Arm(each.head, HEAD.process, each.slower_by)) for each in (IDENTICAL, *SLOWED)
)
_COMPARE_FAIL = "--benchmark-compare-fail=mean:10%"
_FACTOR = 1.10  # what both other tools call a regression, where they are asked to fail at 10 %

# What stands for base and head, for each case; what a play said of some of them.
Contrasts = Mapping[str, Contrast]
Play = Mapping[str, State]
Player = Callable[[Sequence[PairSamples], Contrasts, Iterable[str]], Iterator[Play]]


def figures_of(record: GateRecord, rule: Rule) -> list[Figures]:
    """The gate's rule and the two others' on a self-test's pool."""

    def gate(pool: Sequence[PairSamples], contrasts: Contrasts, _: Iterable[str]) -> Iterator[Play]:
        return _plays(pool, contrasts, record.min_effects, rule)

    players: dict[str, Player] = {"claims gate": gate, "asv continuous": _asv, _COMPARE_FAIL: _compare_fail}
    return [_figures(name, record, player) for name, player in players.items()]


def _figures(name: str, record: GateRecord, player: Player) -> Figures:
    pool = [pair for pair in record.pairs if set(record.min_effects) <= set(pair)]
    identical = dict.fromkeys(record.min_effects, IDENTICAL)
    runs = list(player(pool, identical, identical))
    seen, undecided = {}, {}
    for contrast in record.contrasts:
        states = [[play[key] for play in player(pool, {**identical, key: contrast}, [key])] for key in identical]
        flat, num_plays = [state for each in states for state in each], max(map(len, states), default=0)
        by = f"{contrast.slower_by:.0%}"
        seen[by] = Share(flat.count(State.SLOWER), len(flat), num_plays)
        undecided[by] = Share(flat.count(State.UNDECIDED), len(flat), num_plays)
    alarms, unsure = (sum(state in run.values() for run in runs) for state in (State.SLOWER, State.UNDECIDED))
    return Figures(name, Share(alarms, len(runs), len(runs)), Share(unsure, len(runs), len(runs)), seen, undecided)


def _plays(
    pool: Sequence[PairSamples], contrasts: Contrasts, min_effects: Mapping[str, float], rule: Rule
) -> Iterator[Play]:
    """One gate after the other, each on the pairs that follow; the last one may go on with the first pairs.

    Leaving that one out would leave out those that need many pairs. A pool too small for a single gate gives none.
    """
    start = 0
    while min_effects and start < len(pool):
        running = trial(min_effects, rule)
        try:
            wanted = next(running)
            for number in range(start, start + len(pool)):
                pair = pool[number % len(pool)]
                start = number + 1
                wanted = running.send({key: _log(pair[key], contrasts[key]) for key in wanted})
            running.send(None)  # it wants more pairs than there are
        except StopIteration as ended:
            if len(pool) >= rule.looks[0]:
                yield {key: each.state for key, each in ended.value.items()}


def _log(samples_s: Mapping[str, Samples], contrast: Contrast) -> float:
    return log_ratio(samples_s[contrast.base], samples_s[contrast.head])


def _asv(pool: Sequence[PairSamples], contrasts: Contrasts, watched: Iterable[str]) -> Iterator[Play]:
    """The test of asv on the samples of two processes a side, which is how many it starts."""
    from asv.commands.compare import _is_result_better
    from asv_runner.statistics import compute_stats

    def is_worse(base: list[float], head: list[float]) -> bool:
        (low, low_stats), (high, high_stats) = (compute_stats(side, 1) for side in (base, head))
        return bool(_is_result_better(low, high, (low_stats, base), (high_stats, head), _FACTOR))

    return _by_samples(zip(pool[::2], pool[1::2], strict=False), contrasts, watched, is_worse)


def _compare_fail(pool: Sequence[PairSamples], contrasts: Contrasts, watched: Iterable[str]) -> Iterator[Play]:
    """The check of pytest-benchmark on the samples of one process a side."""
    from pytest_benchmark.utils import PercentageRegressionCheck

    check: Any = PercentageRegressionCheck("mean", (_FACTOR - 1) * 100)  # type: ignore[no-untyped-call]

    def is_worse(base: list[float], head: list[float]) -> bool:
        return bool(check.fails({"mean": fmean(head)}, {"mean": fmean(base)}))

    return _by_samples(zip(pool, strict=True), contrasts, watched, is_worse)


def _by_samples(
    runs: Iterable[Sequence[PairSamples]],
    contrasts: Contrasts,
    watched: Iterable[str],
    is_worse: Callable[[list[float], list[float]], bool],
) -> Iterator[Play]:
    """A play a run, by the samples of all its pairs together."""
    keys = list(watched)
    for pairs in runs:
        play = {}
        for key in keys:
            arms = (contrasts[key].base, contrasts[key].head)
            base, head = ([s for pair in pairs for turn in pair[key][arm] for s in turn] for arm in arms)
            play[key] = State.SLOWER if is_worse(base, head) else State.SAME
        yield play


def noise(record: GateRecord) -> dict[str, float]:
    """For each case, how far a pair's ratio typically lies from one on identical code, as a share."""
    logs = {key: [_log(pair[key], IDENTICAL) for pair in record.pairs if key in pair] for key in record.min_effects}
    return {key: math.expm1(median(map(abs, values))) for key, values in logs.items() if values}
