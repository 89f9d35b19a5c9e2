"""The self-test: a revision against itself, and against itself made slower, on this machine, by the gate's rule.

One pool of pairs serves them all. It is played through the rule as often as it lasts, each time with pairs that
no other play of the same question used, beside the rules of two other tools on the very same samples.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bench_utils.gate.pairs import BASE, HEAD, Arm, Samples
from bench_utils.gate.record import GateRecord, PairSamples
from bench_utils.gate.rule import Judged, Rule, State, log_ratio, trial
from bench_utils.measure import statistics
from bench_utils.measure.statistics import Interval

SLOWDOWNS = tuple(Arm(f"head, {share:.0%} slower", HEAD.process, share) for share in (0.05, 0.10, 0.20))
# The processes take turns: each of the second one's arms comes after one of the first's.
ARMS = tuple(arm for slowed in (HEAD, *SLOWDOWNS) for arm in (BASE, slowed))
_FACTOR = 1.10  # what both other tools call a regression, where they are asked to fail at 10 %


@dataclass(frozen=True)
class Share:
    """How many of how many; `interval` treats what shares pairs as one."""

    num: int
    out_of: int
    num_independent: int

    @property
    def interval(self) -> Interval | None:
        """Wilson's, over what is independent; None without any."""
        if not self.num_independent:
            return None
        return statistics.proportion(round(self.num / self.out_of * self.num_independent), self.num_independent)


@dataclass(frozen=True)
class Figures:
    """One rule on one pool. `alarms`: runs on identical code that call any case slower.

    `seen`: cases that were made slower, alone, and are called so, by how much; `undecided`: the same for "cannot
    tell", which does not pass either.
    """

    name: str
    alarms: Share
    undecided_runs: Share
    seen: Mapping[float, Share]
    undecided: Mapping[float, Share]


def figures_of(record: GateRecord, rule: Rule) -> list[Figures]:
    """The gate's rule and the two others' on a self-test's pool."""
    pool = [pair for pair in record.pairs if set(pair) == set(record.min_effects)]
    return [
        _figures("claims gate", record, lambda arms: _plays(pool, arms, record.min_effects, rule)),
        _figures("asv continuous", record, lambda arms: _asv(pool, arms)),
        _figures("--benchmark-compare-fail=mean:10%", record, lambda arms: _compare_fail(pool, arms)),
    ]


# Which arm stands for head, for each case.
Arms = Mapping[str, str]
Play = Mapping[str, State]


def _figures(name: str, record: GateRecord, plays: Callable[[Arms], Iterator[Play]]) -> Figures:
    identical = dict.fromkeys(record.min_effects, HEAD.name)
    runs = list(plays(identical))
    seen, undecided = {}, {}
    for arm, share in record.slower_by.items():
        states = [[play[key] for play in plays({**identical, key: arm})] for key in identical]
        flat, num_plays = [state for each in states for state in each], max(map(len, states), default=0)
        seen[share] = Share(flat.count(State.SLOWER), len(flat), num_plays)
        undecided[share] = Share(flat.count(State.UNDECIDED), len(flat), num_plays)
    alarms, unsure = (sum(state in run.values() for run in runs) for state in (State.SLOWER, State.UNDECIDED))
    return Figures(name, Share(alarms, len(runs), len(runs)), Share(unsure, len(runs), len(runs)), seen, undecided)


def _plays(pool: Sequence[PairSamples], arms: Arms, min_effects: Mapping[str, float], rule: Rule) -> Iterator[Play]:
    """One gate after the other, each on the pairs that follow; the last one, cut short, is none."""
    pairs = iter(pool)
    while True:
        running = trial(min_effects, rule)
        try:
            wanted = next(running)
            while True:
                pair = next(pairs, None)
                if pair is None:
                    return
                wanted = running.send({key: _log(pair[key], arms[key]) for key in wanted})
        except StopIteration as ended:
            judged: Mapping[str, Judged] = ended.value
            yield {key: each.state for key, each in judged.items()}


def _log(samples_s: Mapping[str, Samples], arm: str) -> float:
    return log_ratio(samples_s[BASE.name], samples_s[arm])


def _asv(pool: Sequence[PairSamples], arms: Arms) -> Iterator[Play]:
    """Asv's own test on the samples of two processes a side, which is how many it starts."""
    from asv.commands.compare import _is_result_better
    from asv_runner.statistics import compute_stats

    for first, second in zip(pool[::2], pool[1::2], strict=False):
        play = {}
        for key, arm in arms.items():
            base, head = ([*_flat(first[key][name]), *_flat(second[key][name])] for name in (BASE.name, arm))
            (low, low_stats), (high, high_stats) = (compute_stats(side, 1) for side in (base, head))
            is_worse = _is_result_better(low, high, (low_stats, base), (high_stats, head), _FACTOR)
            play[key] = State.SLOWER if is_worse else State.SAME
        yield play


def _compare_fail(pool: Sequence[PairSamples], arms: Arms) -> Iterator[Play]:
    """pytest-benchmark's own check on the samples of one process a side."""
    from pytest_benchmark.utils import PercentageRegressionCheck

    check: Any = PercentageRegressionCheck("mean", (_FACTOR - 1) * 100)  # type: ignore[no-untyped-call]
    for pair in pool:
        play = {}
        for key, arm in arms.items():
            base, head = ({"mean": fmean(_flat(pair[key][name]))} for name in (BASE.name, arm))
            play[key] = State.SLOWER if check.fails(head, base) else State.SAME
        yield play


def _flat(turns: Samples) -> list[float]:
    return [seconds for turn in turns for seconds in turn]


def noise(record: GateRecord) -> dict[str, float]:
    """For each case, how far a pair's ratio typically lies from one on identical code, as a share."""
    logs = {key: [_log(pair[key], HEAD.name) for pair in record.pairs if key in pair] for key in record.min_effects}
    return {key: math.expm1(median(map(abs, values))) for key, values in logs.items() if values}
