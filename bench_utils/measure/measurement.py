"""One case measured: frozen, with its raw samples; statistics are derived, never stored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench_utils.measure import statistics
from bench_utils.measure.reading import Reading, missing
from bench_utils.measure.statistics import Interval

Param = str | int | float


# A case whose assert failed, and one that crashed: measured anew when a run is resumed.
BROKEN = ("failed", "error")


@dataclass(frozen=True)
class Validity:
    """Whether a result counts. Codes: ok, out-of-memory, above-roofline, not-applicable,
    failed (an assert of the claim) and error (anything else).
    """

    code: str = "ok"
    reason: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether the result may be used."""
        return self.code == "ok"


@dataclass(frozen=True)
class Bound:
    """What bounds a case, judged by its shares of the measured roofline (None: not assessed)."""

    kind: str
    share_of_bandwidth: float | None = None
    share_of_peak: float | None = None

    def __str__(self) -> str:
        shares = {"bandwidth": self.share_of_bandwidth, "peak": self.share_of_peak}
        known = {limit: share for limit, share in shares.items() if share is not None}
        if not known:
            return self.kind
        nearest = max(known, key=lambda limit: known[limit])
        return f"{self.kind} ({known[nearest]:.0%} of {nearest})"


@dataclass(frozen=True)
class Lap:
    """A named part of every run: its raw samples in seconds, in the order they were taken, and what bounds it."""

    samples_s: tuple[float, ...]
    bound: Bound | None = None


@dataclass(frozen=True)
class Measurement:
    """What one case gave. Times in seconds per run, memory in bytes, energy in joules per run."""

    claim: str
    case: Mapping[str, Param]
    samples_s: tuple[float, ...] = ()
    runs_per_sample: int = 1
    laps: Mapping[str, Lap] = field(default_factory=dict)
    counters: Mapping[str, int | float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, Reading] = field(default_factory=dict)
    energy: Reading = field(default_factory=lambda: missing("not measured for this case"))
    energy_source: str = ""
    bound: Bound | None = None
    validity: Validity = Validity()
    duration_s: float = 0.0
    # The version of the claim's code: another one is another workload.
    version: str = ""

    @property
    def key(self) -> tuple[Param, ...]:
        """The case's parameters, as its key in the results of a claim."""
        return tuple(self.case.values())

    def lap_by_run_s(self, name: str, middle: Callable[[Sequence[float]], float] = median) -> tuple[float, ...]:
        """The median (or mean) of a lap in each run: laps of one run drift together, and are not independent.

        The laps as they are where runs do not have equally many, or were not timed themselves.
        """
        laps, num_runs = self.laps[name].samples_s, len(self.samples_s) * self.runs_per_sample
        if not num_runs or len(laps) % num_runs:
            return laps
        each = len(laps) // num_runs
        return tuple(middle(laps[run * each : (run + 1) * each]) for run in range(num_runs))

    @property
    def is_noisy(self) -> bool:
        """Whether the interquartile range passes 10 % of the median."""
        return statistics.is_noisy(self.samples_s)

    @property
    def median_s(self) -> Interval:
        """The median time of one run."""
        return statistics.median(self.samples_s)
