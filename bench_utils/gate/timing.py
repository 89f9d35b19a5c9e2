"""Timing both sides: pairs for as long as the rule wants them and the budget has room."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic

from bench_utils.gate.pairs import BASE, HEAD, PairTaker
from bench_utils.gate.record import GateRecord, PairSamples
from bench_utils.gate.rule import Judged, Rule, State, log_ratio, trial
from bench_utils.progress import PairProgress

# Starting two processes, beside the cases themselves; known better after the first pair.
_START_S = 10.0


@dataclass
class Timing:
    """The pairs of one gate as they come; `deadline_s` on the monotonic clock."""

    taker: PairTaker
    record: GateRecord
    deadline_s: float
    progress: PairProgress
    save: Callable[[], None]
    _duration_s: dict[str, float] = field(default_factory=dict)
    _start_s: float = _START_S
    _reasons: dict[str, str] = field(default_factory=dict)

    def judge(self, rule: Rule) -> None:
        """Take pairs until the rule has seen enough or time is up; the record keeps each pair and the outcome."""
        running = trial(self.record.min_effects, rule)
        try:
            wanted = next(running)
            while True:
                wanted = running.send(self._next(wanted, rule))
        except StopIteration as ended:
            self.record.times = dict(self._with_reasons(ended.value))
        except KeyboardInterrupt:
            try:
                running.send(None)  # what the pairs at hand say
            except StopIteration as ended:
                self.record.times = dict(self._with_reasons(ended.value))
            raise

    def _next(self, wanted: tuple[str, ...], rule: Rule) -> Mapping[str, float] | None:
        affordable = self._affordable(wanted, rule)
        if not affordable:
            return None
        pair = self.take(affordable)
        return {key: log_ratio(arms[BASE.name], arms[HEAD.name]) for key, arms in pair.items()}

    def take(self, keys: tuple[str, ...]) -> PairSamples:
        """One more pair of these cases, kept in the record."""
        self.progress.begin(len(self.record.pairs) + 1, self.deadline_s - monotonic(), len(keys))
        began_s = monotonic()
        pair = {}
        for timed in self.taker.take(keys):
            self.progress.case(timed.key)
            self._duration_s[timed.key] = timed.duration_s
            if timed.reason:
                self._reasons[timed.key] = timed.reason
            else:
                pair[timed.key] = timed.samples_s
        self._start_s = monotonic() - began_s - sum(self._duration_s[key] for key in keys)
        self.record.pairs.append(pair)
        self.save()
        return pair

    def has_time_for_another(self) -> bool:
        """Whether a pair of all that was timed so far would end in time."""
        return monotonic() + self._start_s + sum(self._duration_s.values()) < self.deadline_s

    def _affordable(self, wanted: tuple[str, ...], rule: Rule) -> tuple[str, ...]:
        """The cases that there is time for: all, or, where not even the first look can be reached, the shortest."""
        left_s = self.deadline_s - monotonic()
        num_pairs = max(1, rule.looks[0] - len(self.record.pairs))
        kept: list[str] = []
        needed_s = num_pairs * self._start_s
        for key in sorted(wanted, key=lambda key: self._duration_s.get(key, 0.0)):
            needed_s += num_pairs * self._duration_s.get(key, 0.0)
            if needed_s > left_s:
                break
            kept.append(key)
        for key in set(wanted) - set(kept):
            self._reasons.setdefault(key, "the budget has no time for its pairs; see --budget and --select")
        return tuple(key for key in wanted if key in kept)

    def _with_reasons(self, found: Mapping[str, Judged]) -> Iterator[tuple[str, Judged]]:
        for key, judged in found.items():
            is_open = judged.state in (State.UNDECIDED, State.UNMEASURED)
            reason = judged.reason or self._reasons.get(key, "")
            yield key, replace(judged, reason=reason) if is_open else judged
