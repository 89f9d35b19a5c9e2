"""Pairs: both sides timed in fresh processes that live at the same time and take turns, in ABBA order.

A machine that slows down for a second, or for an hour, slows both sides of a pair alike. What differs between two
processes of the very same code (where memory came to lie) differs anew in every pair.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from bench_utils.gate.runner import Runner, WorkerDied
from bench_utils.gate.sides import Side

# Turns are short, so that a machine stays as it is for two of them, and many, so that a stall spoils one alone.
_BURST_S, _NUM_TURNS, _SHORTEST_SAMPLE_S = 0.05, 4, 1e-2
# Longer runs have one sample a turn, and at last one turn a pair; the next pair has it in the other order.
_ALONE_S, _LONG_S = 0.2, 0.5
# Of so many runs the fastest tells how long one is: the first pair's plan is every pair's.
_NUM_TRIED = 3


@dataclass(frozen=True)
class Arm:
    """What is timed: the process of a pair that runs it, and a wait added to every run, as a share of its time."""

    name: str
    process: int
    slower_by: float = 0.0


BASE, HEAD = Arm("base", 0), Arm("head", 1)


# Of each turn, in the order that they were taken.
Samples = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class TimedCase:
    """One case of one pair: samples in seconds per run by arm and turn, or the reason that there are none."""

    key: str
    samples_s: Mapping[str, Samples] = field(default_factory=dict)
    reason: str = ""
    # All that it took; and how much of it the next pair will not, for then there is a plan.
    duration_s: float = 0.0
    planning_s: float = 0.0


class _Failed(Exception):  # noqa: N818 - an answer, turned into the end of a case
    pass


@dataclass(frozen=True)
class _Plan:
    """How a case is sampled: the same work on every side, in every pair."""

    num_runs: int
    num_samples: int
    num_warm: int
    num_turns: int


@dataclass
class PairTaker:
    """Takes one pair after the other; a pair's processes live for it alone.

    `contrasts`: what is held against what, each in turns of its own.
    """

    sides: Sequence[Side]
    environ: Mapping[str, str]
    contrasts: Sequence[tuple[Arm, Arm]] = ((BASE, HEAD),)
    _num_taken: int = 0
    _plans: dict[str, _Plan] = field(default_factory=dict)

    def take(self, keys: Iterable[str]) -> Generator[TimedCase, None, None]:
        """One pair of each case, as each is done. A case that ends a process costs only itself."""
        left = list(keys)
        try:
            while left:
                with ExitStack() as stack:
                    yield from self._as_long_as_they_live(stack, left)
        finally:
            self._num_taken += 1

    def _as_long_as_they_live(self, stack: ExitStack, left: list[str]) -> Iterator[TimedCase]:
        """The cases that are left, until one of them ends a process."""
        runners = [stack.enter_context(Runner(side, self.environ)) for side in self.sides]
        while left:
            key, began_s = left.pop(0), perf_counter()
            samples_s: dict[str, Samples] = {}
            planning_s, reason, is_alive = 0.0, "", True
            try:
                samples_s, planning_s = self._case(runners, key)
            except WorkerDied as died:
                reason, is_alive = str(died), False
            except _Failed as failed:
                reason = str(failed)
            yield TimedCase(key, samples_s, reason, perf_counter() - began_s, planning_s)
            if not is_alive:
                return

    def _case(self, runners: Sequence[Runner], key: str) -> tuple[dict[str, Samples], float]:
        """Its samples, and the seconds that its plan took."""
        # One after the other, though nothing is timed yet: threads of two processes that share the cores wait for
        # each other, up to ten times longer than the work takes. The side of the first turn opens first, so that
        # this turn, like all others, comes after the other side's work.
        step = 1 if self._is_base_first else -1
        answers = [runner.ask("open", key=key) for runner in runners[::step]][::step]
        try:
            opened = [_demand(runner, answer) for runner, answer in zip(runners, answers, strict=True)]
            began_s = perf_counter()
            if key not in self._plans:
                self._plans[key] = _plan(runners, key, can_repeat=all(each["can_repeat"] for each in opened))
            planning_s = perf_counter() - began_s
            samples_s = {
                arm.name: turns
                for contrast in self.contrasts
                for arm, turns in zip(contrast, self._turns(runners, key, contrast), strict=True)
            }
        except _Failed:
            _close(runners, answers, key)
            raise
        _close(runners, answers, key)
        return samples_s, planning_s

    @property
    def _is_base_first(self) -> bool:
        """Which arm a pair begins with turns with the pairs."""
        return self._num_taken % 2 == 0

    def _turns(self, runners: Sequence[Runner], key: str, contrast: tuple[Arm, Arm]) -> tuple[Samples, Samples]:
        """Both arms in ABBA order; the next pair begins with the other one."""
        plan = self._plans[key]
        is_slowed = any(arm.slower_by for arm in contrast)
        usual_s = median(_burst(runners[BASE.process], key, plan)) if is_slowed else 0.0
        both: list[tuple[Arm, list[tuple[float, ...]]]] = [(arm, []) for arm in contrast]
        for turn in range(plan.num_turns):
            is_forward = (turn % 2 == 0) == self._is_base_first
            for arm, turns in both if is_forward else reversed(both):
                turns.append(_burst(runners[arm.process], key, plan, arm.slower_by * usual_s))
        base, head = (tuple(turns) for _, turns in both)
        return base, head


def _plan(runners: Sequence[Runner], key: str, *, can_repeat: bool) -> _Plan:
    """By the slowest side: a case that became a thousand times slower must not take a thousand times longer."""
    tried = _Plan(num_runs=1, num_samples=_NUM_TRIED, num_warm=0, num_turns=1)
    run_s = max(min(_burst(runner, key, tried)) for runner in runners)
    num_runs = max(1, math.ceil(_SHORTEST_SAMPLE_S / run_s)) if can_repeat else 1
    fewest = 2 if run_s < _ALONE_S else 1
    is_long = run_s > _LONG_S
    return _Plan(
        num_runs=num_runs,
        num_samples=max(fewest, math.ceil(_BURST_S / max(run_s * num_runs, _SHORTEST_SAMPLE_S))),
        # What runs after the other side finds the caches full of its data, and threads asleep.
        num_warm=0 if is_long else 1,
        num_turns=1 if is_long else _NUM_TURNS,
    )


def _burst(runner: Runner, key: str, plan: _Plan, extra_s: float = 0.0) -> tuple[float, ...]:
    answer = runner.ask(
        "burst",
        key=key,
        num_samples=plan.num_samples,
        num_runs=plan.num_runs,
        num_warm=plan.num_warm,
        extra_s=extra_s,
    )
    return tuple(_demand(runner, answer)["samples_s"])


def _close(runners: Sequence[Runner], answers: Sequence[dict[str, Any]], key: str) -> None:
    """Let go of a case on the sides that opened it."""
    for runner, answer in zip(runners, answers, strict=True):
        if answer["code"] == "ok":
            runner.ask("close", key=key)


def _demand(runner: Runner, answer: dict[str, Any]) -> dict[str, Any]:
    if answer["code"] != "ok":
        raise _Failed(f"{runner.side.name}: {answer['code']}: {answer['reason']}")
    return answer
