"""The chapter's own figures as a record, so that a comparison works on the first day: no more than it states."""

from collections.abc import Iterable

from bench_utils.claim import Claim
from bench_utils.history.entries import (
    Figure,
    MachineEntry,
    ModelEntry,
    PlacementEntry,
    RunRecord,
    SourceState,
    VerdictEntry,
    record_key,
)
from bench_utils.measure.machine import Gpu
from bench_utils.measure.measurement import Lap, Measurement

MACHINE_NAME = "chapter-laptop-8gb"
FILE_NAME = "chapter.json"
_UNSAID = "not stated"


def chapter_record(claims: Iterable[type[Claim]]) -> RunRecord:
    """The record of the machine "chapter, laptop 8 GB": single figures, without samples to stand behind them."""
    record = RunRecord(
        started_at=_UNSAID,
        profile=_UNSAID,
        source=SourceState(None, None),
        model=ModelEntry("Qwen2.5-0.5B-Instruct", _UNSAID),
        placement=PlacementEntry("cuda", _UNSAID, "the chapter ran on a laptop's GPU"),
        machine=MachineEntry(
            name=MACHINE_NAME,
            id="chapter",
            cpu=_UNSAID,
            architecture=_UNSAID,
            os=_UNSAID,
            num_cores=None,
            num_logical_cpus=None,
            num_usable_cpus=None,
            num_threads=None,
            memory_bytes=None,
            container="",
            gpu=Gpu("laptop GPU", _UNSAID, 8 * 2**30, _UNSAID, _UNSAID),
            versions={},
        ),
        origin="stated",
        is_finished=True,
    )
    for claim in claims:
        if claim.chapter:
            _add(record, claim)
    record.planned = list(record.cases)
    return record


def _add(record: RunRecord, claim: type[Claim]) -> None:
    stated = claim.stated
    record.verdicts[claim.id] = VerdictEntry(
        title=claim.title,
        kind=claim.kind,
        chapter=claim.chapter,
        outcome="stated",
        measured=claim.chapter,
        figures={name: Figure(value) for name, value in stated.figures.items()},
    )
    for case in dict.fromkeys((*stated.counters, *stated.laps_s)):
        measurement = Measurement(
            claim=claim.id,
            case=dict(zip(claim.param_names, case, strict=True)),
            laps={name: Lap((seconds,)) for name, seconds in stated.laps_s.get(case, {}).items()},
            counters=dict(stated.counters.get(case, {})),
        )
        record.cases[record_key(measurement)] = measurement
