"""One strict-JSON file per run below results/<machine>/: no host name, no user name, no path in it.

Everything derived (medians, intervals) is left to the reader; raw samples are kept with their unit in the key.
"""

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_utils.cache import write_json
from bench_utils.measure.measurement import BROKEN, Bound, Lap, Measurement, Validity
from bench_utils.measure.reading import Reading
from bench_utils.verdict import Verdict, case_key

SCHEMA_VERSION = 1


class RecordError(ValueError):
    """A file that is not a record of this schema, or a folder that belongs to another machine."""


# An absolute path, POSIX or Windows: two parts at least, so that "tok/s" and "1/16" are none.
_PART = r"[\w.@+~-]+"
_PATH = re.compile(rf"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/](?:{_PART}(?: {_PART})*(?=[\\/])|{_PART})){{2,}}[\\/]?")


@dataclass(frozen=True)
class SourceState:
    """The commit that the claims came from, whether the tree differed from it, and a digest of how."""

    commit: str | None
    is_dirty: bool | None
    changes: str | None = None


@dataclass
class RunRecord:
    """A run: what it ran on, what it measured so far, and its verdicts once it is finished."""

    started_at: str
    profile: str
    source: SourceState
    model: Mapping[str, Any]
    placement: Mapping[str, str]
    machine: Mapping[str, Any]
    roofline: Mapping[str, Any]
    state_before: Mapping[str, Any]
    state_after: Mapping[str, Any] | None = None
    # Files of the user's own that were measured with, by SHA-256.
    inputs: Mapping[str, str] = field(default_factory=dict)
    is_finished: bool = False
    # Every case that the run set out to measure: it is finished when all of them are there.
    planned: list[str] = field(default_factory=list)
    cases: dict[str, Measurement] = field(default_factory=dict)
    verdicts: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, measurement: Measurement) -> None:
        """Keep a finished case, no path in its words: people publish records."""
        validity = replace(measurement.validity, reason=without_paths(measurement.validity.reason))
        notes = {name: without_paths(note) for name, note in measurement.notes.items()}
        self.cases[record_key(measurement)] = replace(measurement, validity=validity, notes=notes)

    def add_verdict(self, claim_id: str, about: Mapping[str, str], verdict: Verdict) -> None:
        """Keep a claim's verdict with the figures behind it."""
        plain = asdict(verdict)
        words = {name: without_paths(text) for name, text in plain.items() if isinstance(text, str)}
        self.verdicts[claim_id] = {**about, **plain, **words, "outcome": verdict.outcome.value}

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
            self.model["name"],
            self.model["revision"],
            self.placement["device"],
            self.placement["dtype"],
            self.machine["id"],
            self.machine["num_threads"],
            dict(self.machine["versions"]),
            dict(self.inputs),
        )

    def to_json(self) -> dict[str, Any]:
        """The document that is written."""
        return {
            "schema_version": SCHEMA_VERSION,
            **{name: value for name, value in vars(self).items() if name not in ("cases", "source")},
            "source": asdict(self.source),
            "cases": {key: asdict(found) for key, found in self.cases.items()},
        }


def without_paths(text: str) -> str:
    """The text with every absolute path in it replaced."""
    return _PATH.sub("<path>", text)


def record_key(measurement: Measurement) -> str:
    """'A2[cached-48]'."""
    return case_key(measurement.claim, measurement.key)


def write(record: RunRecord, path: Path) -> None:
    """Write by rename; the record that was there stays whole if this fails."""
    write_json(path, record.to_json())


def read(path: Path) -> RunRecord:
    """A record from its file.

    Raises:
        RecordError: unreadable, not JSON, or of another schema version.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path.name} is not a readable record: {error}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(f"{path.name} has schema version {version!r}; this program reads {SCHEMA_VERSION}")
    del document["schema_version"]
    try:
        document["source"] = SourceState(**document["source"])
        document["cases"] = {key: _measurement(found) for key, found in document["cases"].items()}
        record = RunRecord(**document)
        _ = record.identity, record.planned  # what every reader relies on
        return record
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise RecordError(f"{path.name} does not have the fields of a record: {error}") from error


def _measurement(document: Mapping[str, Any]) -> Measurement:
    readings = {name: Reading(**reading) for name, reading in document["memory"].items()}
    return Measurement(
        **{
            **document,
            "samples_s": tuple(document["samples_s"]),
            "laps": {name: _lap(lap) for name, lap in document.get("laps", {}).items()},
            "memory": readings,
            "energy": Reading(**document["energy"]),
            "bound": _bound(document["bound"]),
            "validity": Validity(**document["validity"]),
        }
    )


def _lap(document: Mapping[str, Any]) -> Lap:
    return Lap(tuple(document["samples_s"]), _bound(document["bound"]))


def _bound(document: Mapping[str, Any] | None) -> Bound | None:
    return Bound(**document) if document else None


def folder_for(results: Path, machine_name: str, machine_id: str) -> Path:
    """The folder of a machine's records, made where it is missing.

    Raises:
        RecordError: records of a machine with another id lie there already.
        OSError: it cannot be made or written.
    """
    folder = results / machine_name
    folder.mkdir(parents=True, exist_ok=True)
    for _, record in records_in(folder):
        if record.machine["id"] != machine_id:
            raise RecordError(
                f"results/{machine_name} holds records of another machine (id {record.machine['id']}, this one "
                f"is {machine_id}): choose another name with --claims-machine"
            )
    return folder


def records_in(folder: Path) -> Iterator[tuple[Path, RunRecord]]:
    """The readable records of a folder, newest first."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        try:
            yield path, read(path)
        except RecordError:
            continue


def unfinished_like(folder: Path, record: RunRecord) -> tuple[Path, RunRecord] | None:
    """The newest unfinished record of the same run: same claims, model, machine and versions."""
    for path, found in records_in(folder):
        if not found.is_finished and found.identity == record.identity:
            return path, found
    return None


def now_utc() -> str:
    """'2026-11-29T18:02:11Z'."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def file_name(record: RunRecord) -> str:
    """'20261129T180211Z-smollm2-bfloat16-full.json'."""
    model = "".join(c if c.isalnum() or c in "-._" else "-" for c in str(record.model["name"]))
    stamp = record.started_at.replace("-", "").replace(":", "")
    return f"{stamp}-{model}-{record.placement['dtype']}-{record.profile}.json"


def source_state(root: Path) -> SourceState:
    """The commit of the tree at `root`; the records themselves do not make it dirty."""
    here = ("--", ".", ":(exclude)results")
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "diff", "HEAD", *here)
        added = _git(root, "ls-files", "--others", "--exclude-standard", *here).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return SourceState(None, None)
    if not changed and not added:
        return SourceState(commit, False)
    digest = hashlib.sha256(changed.encode())
    for name in added:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return SourceState(commit, True, digest.hexdigest()[:16])


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()
