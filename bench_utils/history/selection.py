"""Records by what a user calls them: a file, a folder of records, or a machine's name."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_utils.history import records
from bench_utils.history.entries import RunRecord
from bench_utils.history.schema import RecordError
from bench_utils.settings import RESERVED

_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Loaded:
    """A record and the file that it lies in."""

    path: Path
    record: RunRecord


def about(found: Loaded) -> dict[str, Any]:
    """What a record is of, in a few fields."""
    record = found.record
    limits = record.roofline
    return {
        "file": found.path.name,
        "origin": record.origin,
        "machine": record.machine.name,
        "gpu": record.machine.gpu.name if record.machine.gpu else None,
        "num_threads": record.machine.num_threads,
        "started_at": record.started_at,
        "commit": record.source.commit,
        "model": record.model.name,
        "revision": record.model.revision,
        "device": record.placement.device,
        "dtype": record.placement.dtype,
        "profile": record.profile,
        "num_cases": len(record.cases),
        "is_finished": record.is_finished,
        "bandwidth_bytes_per_s": limits.memory_bandwidth,
        "peak_flop_per_s": limits.peak(record.placement.dtype),
    }


@dataclass(frozen=True)
class Selection:
    """The records that could be read, oldest first, and what is wrong with the others."""

    loaded: tuple[Loaded, ...]
    refused: tuple[str, ...]


def select(names: Iterable[str], results: Path) -> Selection:
    """The records of files, of folders and of the machines below `results`; of all of them where none is named.

    Raises:
        RecordError: there is nothing of that name, or no record at all; says what exists and what to do.
    """
    refused: list[str] = []
    loaded = list(read_each(find(names, results), refused))
    loaded.sort(key=lambda found: (not found.record.is_stated, found.record.started_at))
    return Selection(tuple(loaded), tuple(refused))


def find(names: Iterable[str], results: Path) -> list[Path]:
    """The files of what is named, whatever is in them.

    Raises:
        RecordError: as above.
    """
    given = list(names)
    paths = [path for name in given for path in _files(name, results)] if given else list(_all(results))
    if not paths:
        raise RecordError(
            f"there is no record in {', '.join(given) or results}: run `pytest benchmarks --benchmark-only` first"
        )
    return list(dict.fromkeys(paths))


def read_each(paths: Iterable[Path], refused: list[str]) -> Iterator[Loaded]:
    """One record after the other, so that many need no more memory than is kept; `refused` gets the reasons."""
    for path in paths:
        try:
            yield Loaded(path, records.read(path))
        except RecordError as error:
            refused.append(f"{path.parent.name}/{error}")


def newest(name: str, results: Path) -> tuple[Loaded, tuple[str, ...]]:
    """One record: the file, or the newest finished one of a folder or machine that is whole; what was left out.

    A quick run, or one of a few claims, does not stand for a full one.

    Raises:
        RecordError: none can be read, or none is finished.
    """
    found = select([name], results)
    finished = [each for each in found.loaded if each.record.is_finished]
    if not found.loaded:
        raise RecordError("; ".join(found.refused))
    if not finished:
        raise RecordError(f"{name} holds no finished record: finish one with --claims-resume")
    best = finished[0]
    for each in finished[1:]:
        best = each if stands_for(each.record, best.record) else best
    return best, found.refused


def stands_for(newer: RunRecord, older: RunRecord) -> bool:
    """Whether a record replaces an older one: of the full profile where that is, with nearly all of its cases."""
    if newer.profile != older.profile:
        return newer.profile == "full"
    return len(newer.planned) >= _NEARLY_ALL * len(older.planned)


def machines(results: Path) -> list[str]:
    """The names of the machines that have records."""
    return sorted({path.parent.name for path in _all(results)})


def _files(name: str, results: Path) -> list[Path]:
    if not name.strip():
        raise RecordError("a record, folder or machine is named by nothing")
    path = Path(name)
    if path.is_file():
        return [path]
    # A machine comes before a folder that happens to have its name.
    below = [folder for folder in (results / name, path) if folder.is_dir()]
    if not below:
        known = ", ".join(machines(results)) or f"none below {results}"
        raise RecordError(f"no record, folder or machine {name!r}; machines: {known}")
    return sorted(each for each in below[0].glob("*.json") if not _is_schema(each)) or list(_all(below[0]))


def _is_schema(path: Path) -> bool:
    return path.name.endswith(".schema.json")


def _all(results: Path) -> Iterator[Path]:
    """Every machine's records; asv and the gate keep folders of their own beside them."""
    return (path for path in sorted(results.glob("*/*.json")) if path.parent.name not in RESERVED)
