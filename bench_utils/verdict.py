"""A claim's verdict over all its cases, and the results that it is derived from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

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
    # Lines of text to look at below the scoreboard, such as a histogram.
    picture: str = ""
    # Cells of the table that claims about schemes fill together: by scheme, then by column.
    by_scheme: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    figures: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Stated:
    """What the chapter states of a claim, by the names of the claim's own figures, cases, counters and laps."""

    figures: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[tuple[Param, ...], Mapping[str, float]] = field(default_factory=dict)
    laps_s: Mapping[tuple[Param, ...], Mapping[str, float]] = field(default_factory=dict)


# How far over a prediction a ratio may lie and still be called as predicted: what a shared machine can tell.
MARGIN = 0.05


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

    def get_if_any(self, case: tuple[Param, ...]) -> Measurement | None:
        """A case, or None where it means nothing here or was not run; an invalid one ends the verdict."""
        found = self._by_case.get(case)
        return None if found is None or found.validity.code == "not-applicable" else self[case]

    def samples_s(self, *case: Param) -> tuple[float, ...]:
        """The raw samples of a case in seconds."""
        found = self[case]
        if not found.samples_s:
            raise UndecidedError(Outcome.INCONCLUSIVE, f"{case_id(case)}: timing was switched off")
        return found.samples_s

    def laps(self, *case: Param) -> list[str]:
        """The names of a case's laps, in the order they were run."""
        self.samples_s(*case)
        return list(self[case].laps)

    def lap_s(self, name: str, *case: Param) -> tuple[float, ...]:
        """The raw samples of a lap in seconds."""
        if name not in self.laps(*case):
            raise UndecidedError(Outcome.INCONCLUSIVE, f"{case_id(case)}: no lap {name!r}")
        return self[case].laps[name].samples_s

    def lap_by_run_s(
        self, name: str, *case: Param, middle: Callable[[Sequence[float]], float] = median
    ) -> tuple[float, ...]:
        """The median (or mean) of a lap in each run, which is what runs have of it that is independent."""
        self.lap_s(name, *case)  # or the verdict ends here
        return self[case].lap_by_run_s(name, middle)

    def paired_ratio(self, numerator: str, denominator: str, *case: Param) -> Interval:
        """The median over runs of the ratio of two laps: drift slows both sides of a pair alike."""
        pairs = zip(self.lap_by_run_s(numerator, *case), self.lap_by_run_s(denominator, *case), strict=True)
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


def all_of(outcomes: list[Outcome]) -> Outcome:
    """Holds where every part does; does not hold where any part does not; else, or without parts, inconclusive."""
    if outcomes and all(outcome is Outcome.HOLDS for outcome in outcomes):
        return Outcome.HOLDS
    if Outcome.DOES_NOT_HOLD in outcomes:
        return Outcome.DOES_NOT_HOLD
    return Outcome.INCONCLUSIVE
