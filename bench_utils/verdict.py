"""A claim's verdict over all its cases, and the results that it is derived from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from bench_utils.measure import statistics
from bench_utils.measure.measurement import Measurement, Param
from bench_utils.measure.statistics import Interval


class Outcome(Enum):
    """What a run says of a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold here"
    INCONCLUSIVE = "inconclusive"
    NOT_APPLICABLE = "not applicable"
    INVALID = "invalid"


@dataclass(frozen=True)
class Verdict:
    """The outcome, what was measured in words, and the figures behind the words."""

    outcome: Outcome
    measured: str = ""
    predicted: str = ""
    bound: str = ""
    reason: str = ""
    figures: Mapping[str, Interval] = field(default_factory=dict)


class UndecidedError(Exception):
    """The results at hand decide nothing; carries the verdict that says why."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.verdict = Verdict(outcome, reason=reason)


class Results(Mapping[tuple[Param, ...], Measurement]):
    """The measurements of one claim by case. Asking for one that is not there, or is invalid, ends the verdict."""

    def __init__(self, measurements: Mapping[tuple[Param, ...], Measurement]) -> None:
        self._by_case = dict(measurements)

    def __getitem__(self, case: tuple[Param, ...]) -> Measurement:
        name = case_id(case)
        found = self._by_case.get(case)
        if found is None:
            raise UndecidedError(Outcome.INCONCLUSIVE, f"case {name} was not run")
        if found.validity.code == "not-applicable":
            raise UndecidedError(Outcome.NOT_APPLICABLE, f"{name}: {found.validity.reason}")
        if not found.validity.is_ok:
            raise UndecidedError(Outcome.INVALID, f"{name}: {found.validity.code}, {found.validity.reason}")
        return found

    def __iter__(self) -> Iterator[tuple[Param, ...]]:
        return iter(self._by_case)

    def __len__(self) -> int:
        return len(self._by_case)

    def usable(self) -> dict[tuple[Param, ...], Measurement]:
        """The valid measurements; a claim over whatever was run asks for these.

        Raises:
            UndecidedError: there is none.
        """
        valid = {case: found for case, found in self._by_case.items() if found.validity.is_ok}
        if not valid:
            for case in self._by_case:
                self[case]
            raise UndecidedError(Outcome.INCONCLUSIVE, "no case was run")
        return valid

    def samples_s(self, *case: Param) -> tuple[float, ...]:
        """The raw samples of a case in seconds."""
        found = self[case]
        if not found.samples_s:
            raise UndecidedError(Outcome.INCONCLUSIVE, f"{case_id(case)}: timing was switched off")
        return found.samples_s

    def lap_s(self, name: str, *case: Param) -> tuple[float, ...]:
        """The raw samples of a lap in seconds."""
        self.samples_s(*case)
        if name not in (laps := self[case].laps):
            raise UndecidedError(Outcome.INCONCLUSIVE, f"{case_id(case)}: no lap {name!r}")
        return laps[name].samples_s

    def paired_ratio(self, numerator: str, denominator: str, *case: Param) -> Interval:
        """The median ratio of two laps of the same runs: drift slows both sides of a pair alike."""
        pairs = zip(self.lap_s(numerator, *case), self.lap_s(denominator, *case), strict=True)
        return statistics.median([a / b for a, b in pairs])

    def lap_bound(self, name: str, *case: Param) -> str:
        """What bounds a lap, in words."""
        bound = self[case].laps[name].bound
        return str(bound) if bound else ""

    def median_s(self, *case: Param) -> Interval:
        """The median time of one run of a case, with its interval."""
        return statistics.median(self.samples_s(*case))

    def ratio(self, numerator: tuple[Param, ...], denominator: tuple[Param, ...]) -> Interval:
        """The ratio of two cases' median times, with its interval."""
        return statistics.ratio(self.samples_s(*numerator), self.samples_s(*denominator))

    def bound(self, *case: Param) -> str:
        """What bounds a case, in words."""
        bound = self[case].bound
        return str(bound) if bound else ""


def case_id(case: tuple[Param, ...]) -> str:
    """'cached-48'."""
    return "-".join(str(value) for value in case)


def case_key(claim_id: str, case: tuple[Param, ...]) -> str:
    """'A2[cached-48]', as records, progress and the doctor name a case."""
    return f"{claim_id}[{case_id(case)}]"


def above(interval: Interval, threshold: float) -> Outcome:
    """Holds where the whole interval lies above the threshold, does not where it lies below, else inconclusive."""
    if interval.low > threshold:
        return Outcome.HOLDS
    if interval.high < threshold:
        return Outcome.DOES_NOT_HOLD
    return Outcome.INCONCLUSIVE


def at_most(interval: Interval, limit: float) -> Outcome:
    """Holds where the whole interval keeps the limit, does not where it lies above, else inconclusive."""
    if interval.high <= limit:
        return Outcome.HOLDS
    return Outcome.DOES_NOT_HOLD if interval.low > limit else Outcome.INCONCLUSIVE


def as_predicted(measured: Interval, predicted: float) -> Outcome:
    """Whether a ratio is no more than predicted, as far as its interval tells.

    Does not hold where the whole interval lies above; an interval too wide to tell (its half over what counts as
    noise) is inconclusive.
    """
    if measured.low > predicted:
        return Outcome.DOES_NOT_HOLD
    is_narrow = measured.high - measured.low <= 2 * statistics.NOISY_IQR * measured.value
    return Outcome.HOLDS if is_narrow or measured.high <= predicted else Outcome.INCONCLUSIVE


def all_of(outcomes: list[Outcome]) -> Outcome:
    """Holds where every part does; does not hold where any part does not; else inconclusive."""
    if all(outcome is Outcome.HOLDS for outcome in outcomes):
        return Outcome.HOLDS
    if Outcome.DOES_NOT_HOLD in outcomes:
        return Outcome.DOES_NOT_HOLD
    return Outcome.INCONCLUSIVE
