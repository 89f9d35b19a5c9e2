"""One strict-JSON file per run below results/<machine>/: written, read, and found again.

Everything derived (medians, intervals) is left to the reader; raw samples are kept with their unit in the key.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench_utils.cache import write_json
from bench_utils.history import schema
from bench_utils.history.entries import RunRecord, SourceState
from bench_utils.history.schema import RecordError


def write(record: RunRecord, path: Path) -> None:
    """Write by rename; the record that was there stays whole if this fails."""
    write_json(path, schema.to_document(record))


def read(path: Path) -> RunRecord:
    """A record from its file.

    Raises:
        RecordError: named: unreadable, of an unknown version, edited by hand, or without the fields of a record.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path.name} is not a readable record: {error}") from error
    try:
        return schema.from_text(text)
    except RecordError as error:
        raise RecordError(f"{path.name} {error}") from error


def folder_for(results: Path, machine_name: str, machine_id: str) -> Path:
    """The folder of a machine's records, made where it is missing.

    Raises:
        RecordError: records of a machine with another id lie there already.
        OSError: it cannot be made or written.
    """
    folder = results / machine_name
    folder.mkdir(parents=True, exist_ok=True)
    for _, record in records_in(folder):
        if record.machine.id != machine_id:
            raise RecordError(
                f"results/{machine_name} holds records of another machine (id {record.machine.id}, this one "
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
    model = "".join(c if c.isalnum() or c in "-._" else "-" for c in str(record.model.name))
    stamp = record.started_at.replace("-", "").replace(":", "")
    return f"{stamp}-{model}-{record.placement.dtype}-{record.profile}.json"


def source_state(root: Path) -> SourceState:
    """The commit of the tree at `root`; the records themselves do not make it dirty."""
    here = ("--", ".", ":(exclude)results")
    try:
        commit = _git(root, "rev-parse", "HEAD").decode().strip()
        changed = _git(root, "diff", "HEAD", *here)
        added = _git(root, "ls-files", "-z", "--others", "--exclude-standard", *here).split(b"\0")[:-1]
    except (OSError, subprocess.CalledProcessError):
        return SourceState(None, None)
    if not changed and not added:
        return SourceState(commit, False)
    digest = hashlib.sha256(changed)
    for name in added:
        digest.update(name + b"\0" + (root / os.fsdecode(name)).read_bytes())
    return SourceState(commit, True, digest.hexdigest()[:16])


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout
