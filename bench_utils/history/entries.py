"""What a run record holds, field by field: the schema of its file is made from these."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from bench_utils.history.paths import without_paths
from bench_utils.measure.machine import Gpu, Machine, MachineState
from bench_utils.measure.measurement import BROKEN, Measurement
from bench_utils.measure.roofline import Roofline
from bench_utils.verdict import Verdict, case_key

# Where figures come from: samples of a run, or the words of a text, which has no samples.
Origin = Literal["measured", "stated"]


@dataclass(frozen=True)
class SourceState:
    """The commit that the claims came from, whether the tree differed from it, and a digest of how."""

    commit: str | None
    is_dirty: bool | None
    changes: str | None = None


@dataclass(frozen=True)
class ModelEntry:
    """The model: `revision` pins its weights."""

    name: str
    revision: str
    note: str = ""
    is_random: bool = False


@dataclass(frozen=True)
class PlacementEntry:
    """Where it ran, in which dtype, and why there."""

    device: str
    dtype: str
    why: str = ""


@dataclass(frozen=True)
class MachineEntry:
    """The machine's fingerprint under the name of its folder; None: nobody said."""

    name: str
    id: str
    cpu: str
    architecture: str
    os: str
    num_cores: int | None
    num_logical_cpus: int | None
    num_usable_cpus: int | None
    num_threads: int | None
    memory_bytes: int | None
    container: str
    gpu: Gpu | None
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Figure:
    """A figure of a verdict with its interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class VerdictEntry:
    """What a run said of a claim."""

    title: str
    kind: str
    chapter: str
    outcome: str
    measured: str = ""
    predicted: str = ""
    bound: str = ""
    reason: str = ""
    picture: str = ""
    by_scheme: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass
class RunRecord:
    """A run: what it ran on, what it measured so far, and its verdicts once it is finished."""

    started_at: str
    profile: str
    source: SourceState
    model: ModelEntry
    placement: PlacementEntry
    machine: MachineEntry
    roofline: Roofline = field(default_factory=Roofline)
    state_before: MachineState | None = None
    state_after: MachineState | None = None
    # Files of the user's own that were measured with, by SHA-256.
    inputs: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = "measured"
    is_finished: bool = False
    # Every case that the run set out to measure: it is finished when all of them are there.
    planned: list[str] = field(default_factory=list)
    cases: dict[str, Measurement] = field(default_factory=dict)
    verdicts: dict[str, VerdictEntry] = field(default_factory=dict)

    def add(self, measurement: Measurement) -> None:
        """Keep a finished case, no path in its words: people publish records."""
        validity = replace(measurement.validity, reason=without_paths(measurement.validity.reason))
        notes = {name: without_paths(note) for name, note in measurement.notes.items()}
        self.cases[record_key(measurement)] = replace(measurement, validity=validity, notes=notes)

    def add_verdict(self, claim_id: str, about: Mapping[str, str], verdict: Verdict) -> None:
        """Keep a claim's verdict with the figures behind it; `about`: its title, kind and chapter's figure."""
        words = {f.name: getattr(verdict, f.name) for f in fields(verdict)}
        self.verdicts[claim_id] = VerdictEntry(
            **about,
            outcome=verdict.outcome.value,
            by_scheme=verdict.by_scheme,
            figures={name: Figure(**asdict(interval)) for name, interval in verdict.figures.items()},
            **{name: without_paths(text) for name, text in words.items() if isinstance(text, str)},
        )

    @property
    def is_stated(self) -> bool:
        """Whether a text's figures and no run's."""
        return self.origin == "stated"

    @property
    def is_whole(self) -> bool:
        """Whether every planned case was measured, or found to mean nothing."""
        return all(key in self.cases and self.cases[key].validity.code not in BROKEN for key in self.planned)

    @property
    def identity(self) -> tuple[object, ...]:
        """What must be equal for one run to go on where another stopped."""
        return (
            self.profile,
            self.source,
            (self.model.name, self.model.revision),
            (self.placement.device, self.placement.dtype),
            (self.machine.id, self.machine.num_threads),
            dict(self.machine.versions),
            dict(self.inputs),
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as plain mappings, lists and numbers."""
        return asdict(self)


def record_key(measurement: Measurement) -> str:
    """'A2[cached-48]'."""
    return case_key(measurement.claim, measurement.key)


def machine_entry(machine: Machine, name: str) -> MachineEntry:
    """The machine as a record holds it: its name, or the one that the user chose, its id, and the fingerprint."""
    kept = {f.name: getattr(machine, f.name) for f in fields(machine)}
    return MachineEntry(name=name or machine.name, id=machine.id, **kept)
