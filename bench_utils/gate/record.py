"""What a gate leaves: one strict-JSON file with the raw samples of every pair, safe after each of them."""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bench_utils.cache import write_text
from bench_utils.gate.figures import Contrast, Figures
from bench_utils.gate.findings import Finding
from bench_utils.gate.pairs import Samples
from bench_utils.gate.rule import Judged
from bench_utils.history.entries import MachineEntry, SourceState
from bench_utils.history.paths import without_paths
from bench_utils.history.schema import RecordError

VERSION = 1
Kind = Literal["gate", "self-test"]
# By case, then by arm: the samples of each turn in seconds per run.
PairSamples = Mapping[str, Mapping[str, Samples]]


@dataclass
class GateRecord:
    """A gate or its self-test. What it found lies beside its pairs; `status`: the exit status."""

    kind: Kind
    started_at: str
    base: SourceState
    head: SourceState
    model: str
    profile: str
    device: str
    dtype: str
    machine: MachineEntry
    # How many busy neighbours the self-test had, what it held against what, and what came of it.
    num_neighbours: int = 0
    contrasts: tuple[Contrast, ...] = ()
    figures: list[Figures] = field(default_factory=list)
    min_effects: dict[str, float] = field(default_factory=dict)
    pairs: list[PairSamples] = field(default_factory=list)
    times: dict[str, Judged] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    # Cases of both sides that ran on both, and those that mean nothing here or fail.
    num_compared: int = 0
    num_skipped: int = 0
    verdict: str = "interrupted"
    status: int | None = None

    def write(self, path: Path) -> None:
        """Write by rename. No path of this machine is in it."""
        told = [replace(each, told=without_paths(each.told)) for each in self.findings]
        times = {key: replace(each, reason=without_paths(each.reason)) for key, each in self.times.items()}
        document = {"schema_version": VERSION, **asdict(replace(self, findings=told, times=times))}
        write_text(path, json.dumps(document, default=_value, allow_nan=False, ensure_ascii=False) + "\n")


def _value(enum: Any) -> Any:
    return enum.value


def path_for(results: Path, record: GateRecord) -> Path:
    """results/<machine>/gate/<when>-<kind>.json: below the run records, which are looked for one folder higher."""
    stamp = record.started_at.replace("-", "").replace(":", "")
    return results / record.machine.name / "gate" / f"{stamp}-{record.kind}.json"


def read(path: Path) -> GateRecord:
    """A gate's record from its file.

    Raises:
        RecordError: named: unreadable, of another version, or without its fields.
    """
    from pydantic import ValidationError

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.pop("schema_version", None) != VERSION:
            raise RecordError(f"{path.name} is no gate's record of version {VERSION}")
        record: GateRecord = _adapter().validate_json(json.dumps(document))
    except (OSError, ValueError, ValidationError) as error:
        raise RecordError(
            f"{path.name} is not a readable record of a gate: {str(error).splitlines()[0]}"
        ) from error
    return record


def self_tests(results: Path, machine_id: str) -> Iterator[tuple[Path, GateRecord]]:
    """The self-tests of a machine that can be read, newest first."""
    for path in sorted(results.glob("*/gate/*-self-test.json"), key=lambda path: path.name, reverse=True):
        try:
            record = read(path)
        except RecordError:
            continue
        if record.machine.id == machine_id and record.pairs:
            yield path, record


@functools.cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(GateRecord)
