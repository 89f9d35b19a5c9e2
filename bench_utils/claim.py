"""Claim: one falsifiable sentence as one benchmark. The only file that knows both runners, pytest and asv."""

import functools
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar, Literal, NoReturn

from bench_utils import settings, workload
from bench_utils.lab import Lab, first_line, open_lab
from bench_utils.measure.bounds import Work
from bench_utils.measure.measurement import Measurement, Param
from bench_utils.measure.sampler import Budget
from bench_utils.settings import NotApplicableError
from bench_utils.verdict import Outcome, Results, Stated, UndecidedError, Verdict, case_id

__all__ = ["Claim", "Mapping", "NotApplicableError", "Outcome", "Results", "Stated", "Verdict", "Work", "case_id"]

Kind = Literal["exact", "physical"]

# A case whose assert failed speaks against the claim; one that crashed says nothing about it.
VERDICT_FAILED = "its verdict failed"
_BROKEN = {"failed": Outcome.DOES_NOT_HOLD, "error": Outcome.INVALID}


class Claim(ABC):
    """One claim over all its cases. See CONTRIBUTING.md for a worked example.

    asv reads attributes by name (setup, teardown, params, param_names, timeout, version): no other meaning may
    be given to those, nor to its repeat, number, rounds, unit, type and timer.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[Kind] = "physical"
    # The chapter's figure, printed beside the figure measured here.
    chapter: ClassVar[str] = ""
    # The same in numbers, for the chapter's own record, as far as they are this claim's figures and cases.
    stated: ClassVar[Stated] = Stated()
    # Whether run() is timed; an exact claim that is only counted says False.
    timed: ClassVar[bool] = True
    # Whether restore() puts back a state that run() changes: each run is then sampled alone.
    has_state: ClassVar[bool] = False
    # Exact counters that asv follows as series of their own, with their units; all of them costs.
    tracked: ClassVar[Mapping[str, str]] = {}

    # The smallest slowdown, as a share, that `claims gate` is to call a regression.
    min_effect: ClassVar[float] = 0.05

    params: ClassVar[list[list[Param]]] = []
    param_names: ClassVar[list[str]] = []
    timeout: ClassVar[float] = 900.0
    version: ClassVar[str] = ""

    _lab: Lab | None = None

    @property
    def lab(self) -> Lab:
        """The instruments; those of the environment's CLAIMS_* variables unless a runner gave its own."""
        return self._lab or _environment_lab()

    def skip_reason(self, *case: Param) -> str:
        """Why this case means nothing with these settings on this device ('': it does); checked before setup()."""
        return ""

    def setup(self, *case: Param) -> None:
        """Prepare a case, untimed; call not_applicable(reason) where the model turns out not to suit it."""

    def restore(self, *case: Param) -> None:
        """Put back the state that run() changes, untimed, before every run."""

    @abstractmethod
    def run(self, *case: Param) -> Any:
        """The work that is timed."""

    def check(self, output: Any, *case: Param) -> None:
        """Assert what is exact, on the timed run's own output."""

    def counters(self, output: Any, *case: Param) -> Mapping[str, int | float]:
        """Exact costs: MACs, bytes, tokens fed, kernels."""
        return {}

    def notes(self, output: Any, *case: Param) -> Mapping[str, str]:
        """What a reader of the record should know in words: a near tie, a case scaled down."""
        return {}

    def work(self, output: Any, *case: Param) -> Work | None:
        """What one run must move and multiply, for its share of the roofline; None: not assessed."""
        return None

    def lap_work(self, output: Any, *case: Param) -> Mapping[str, Work]:
        """The same for the laps of run(), by name: parts that it timed with `self.lab.laps.lap(name)`."""
        return {}

    def budget(self, default: Budget) -> Budget:
        """How long to sample a case."""
        return default

    @abstractmethod
    def verdict(self, results: Results) -> Verdict:
        """What all cases say together. An AssertionError is a verdict too: does not hold."""

    def teardown(self, *case: Param) -> None:
        """Let go of what setup() made."""

    def not_applicable(self, reason: str) -> NoReturn:
        """End the setup of a case that means nothing here."""
        raise NotApplicableError(reason)

    @classmethod
    def cases(cls) -> list[tuple[Param, ...]]:
        """Every combination of the parameters, the first one slowest."""
        return list(itertools.product(*cls.params))

    def test(self, case: tuple[Param, ...], benchmark: Any, claims_session: Any) -> None:
        """Pytest's entry: one case through the benchmark fixture."""
        claims_session.run_case(self, case, benchmark)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.version = workload.version_of(cls)
        if "setup" in vars(cls) or "skip_reason" in vars(cls):
            cls.setup = _checked_setup(cls.setup)  # type: ignore[method-assign]
        if cls.timed and not inspect.isabstract(cls):
            cls.track_time = _track_time()  # type: ignore[attr-defined]
        for counter, unit in cls.tracked.items():
            setattr(cls, f"track_{counter}", _track_counter(counter, unit))


def decide(claim: Claim, measurements: Mapping[tuple[Param, ...], Measurement]) -> Verdict:
    """The claim's verdict over what was measured, undecided and failing ones included."""
    for found in measurements.values():
        if found.validity.code in _BROKEN:
            return Verdict(_BROKEN[found.validity.code], reason=f"{case_id(found.key)}: {found.validity.reason}")
    try:
        verdict = claim.verdict(Results(measurements))
        if verdict.outcome is Outcome.INCONCLUSIVE and not verdict.reason:
            verdict = replace(verdict, reason="the interval decides nothing")
        return verdict
    except UndecidedError as undecided:
        return undecided.verdict
    except AssertionError as error:
        return Verdict(Outcome.DOES_NOT_HOLD, reason=first_line(error))
    except Exception as error:  # a bug in one verdict must not take the others with it
        return Verdict(Outcome.INVALID, reason=f"{VERDICT_FAILED}: {first_line(error)}")


@functools.cache
def _environment_lab() -> Lab:
    # One process of asv measures one case: no memory or energy pass, and the limits come from the cache.
    return open_lab(settings.from_environ(), ExitStack(), with_passes=False)


def _checked_setup(setup: Any) -> Any:
    """A setup that asks skip_reason() first, whichever runner calls it."""

    @functools.wraps(setup)
    def checked(self: Claim, *case: Param) -> None:
        if reason := self.skip_reason(*case):
            raise NotApplicableError(reason)
        setup(self, *case)

    return checked


def _track_time() -> Any:
    def track_time(self: Claim, *case: Param) -> Any:
        measured = self.lab.sample(self, case)
        if not measured.validity.is_ok:
            raise RuntimeError(f"{measured.validity.code}: {measured.validity.reason}")
        return {"samples": list(measured.samples_s), "number": measured.runs_per_sample}

    # asv pools the samples of two fresh processes, and shows them as times.
    track_time.type, track_time.unit, track_time.rounds = "time", "seconds", 2  # type: ignore[attr-defined]
    return track_time


def _track_counter(counter: str, unit: str) -> Any:
    def track(self: Claim, *case: Param) -> float:
        self.restore(*case)
        output = self.run(*case)
        self.check(output, *case)
        return self.counters(output, *case)[counter]

    track.__name__, track.unit = f"track_{counter}", unit  # type: ignore[attr-defined]
    return track
