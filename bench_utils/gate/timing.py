"""Timing both sides: pairs for as long as the rule wants them and the budget has room."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import monotonic

from bench_utils.gate.pairs import BASE, HEAD, PairTaker, Samples
from bench_utils.gate.record import GateRecord, PairSamples
from bench_utils.gate.rule import Judged, Rule, State, log_ratio
from bench_utils.gate.trial import trial
from bench_utils.progress import PairProgress

_NO_TIME = "the budget has no time for its pairs: see --budget and --select"


@dataclass
class Timing:
    """The pairs of one gate as they come; `deadline_s` on the monotonic clock."""

    taker: PairTaker
    record: GateRecord
    deadline_s: float
    progress: PairProgress
    save: Callable[[], None]
    # What each case takes, and starting the processes: known after the first pair.
    _duration_s: dict[str, float] = field(default_factory=dict)
    _start_s: float = 0.0
    # Cases that could not be timed, and why.
    failed: dict[str, str] = field(default_factory=dict)

    def judge(self, rule: Rule) -> None:
        """Take pairs until the rule has seen enough or time is up; the record keeps each pair and the outcome."""
        running = trial(self.record.min_effects, rule)
        try:
            wanted = next(running)
            while True:
                wanted = running.send(self._next(wanted, rule))
        except StopIteration as ended:
            self._keep(ended.value)
        except KeyboardInterrupt:
            try:
                running.send(None)  # what the pairs at hand say
            except StopIteration as ended:
                self._keep(ended.value or {}, "interrupted")  # nothing, where the rule itself was
            raise

    def take(self, keys: Sequence[str]) -> PairSamples:
        """One more pair of these cases, kept in the record; cut off where time is up."""
        self.progress.begin(len(self.record.pairs) + 1, self.deadline_s - monotonic(), len(keys))
        began_s, spent_s = monotonic(), 0.0
        pair: dict[str, Mapping[str, Samples]] = {}
        with closing(self.taker.take(keys)) as taken:
            for timed in taken:
                self.progress.case(timed.key)
                spent_s += timed.duration_s
                self._duration_s[timed.key] = timed.duration_s - timed.planning_s
                if timed.reason:
                    self.failed[timed.key] = timed.reason
                else:
                    pair[timed.key] = timed.samples_s
                if monotonic() > self.deadline_s:
                    break
        self._start_s = max(0.0, monotonic() - began_s - spent_s)
        self.record.pairs.append(pair)
        self.save()
        return pair

    def has_time_for_another(self) -> bool:
        """Whether a pair of all that was timed so far would end in time."""
        return monotonic() + self._start_s + sum(self._duration_s.values()) < self.deadline_s

    def _next(self, wanted: Sequence[str], rule: Rule) -> Mapping[str, float] | None:
        affordable = self._affordable(wanted, rule)
        if not affordable:
            return None
        pair = self.take(affordable)
        return {key: log_ratio(arms[BASE.name], arms[HEAD.name]) for key, arms in pair.items()}

    def _affordable(self, wanted: Sequence[str], rule: Rule) -> list[str]:
        """The cases that there is time for: the most urgent ones, and before the first look the shortest ones."""
        num_pairs = max(1, rule.looks[0] - len(self.record.pairs))
        left_s = self.deadline_s - monotonic() - num_pairs * self._start_s
        in_order = wanted if num_pairs == 1 else sorted(wanted, key=lambda key: self._duration_s.get(key, 0.0))
        kept = set()
        for key in in_order:
            needed_s = num_pairs * self._duration_s.get(key, 0.0)
            if needed_s <= left_s:
                kept.add(key)
                left_s -= needed_s
        return [key for key in wanted if key in kept]

    def _keep(self, found: Mapping[str, Judged], unmeasured: str = _NO_TIME) -> None:
        for key, judged in found.items():
            why = judged.reason or (unmeasured if judged.state is State.UNMEASURED else "")
            is_open = judged.state in (State.UNDECIDED, State.UNMEASURED)
            reason = self.failed.get(key, "") if is_open else ""
            self.record.times[key] = replace(judged, reason=reason or why)
