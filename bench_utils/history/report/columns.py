"""Which records stand side by side: the newest finished one of each machine, model, dtype and thread count."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_utils.history.entries import RunRecord
from bench_utils.history.selection import Loaded, about, stands_for

# Of a label's parts those that are told wherever they differ; the rest only where two labels would be one.
_NUM_PARTS, _ALWAYS_TOLD = 8, 5


@dataclass(frozen=True)
class Column:
    """A record with the name that it has in tables and plots."""

    label: str
    record: RunRecord


@dataclass
class Columns:
    """Records are fed one by one: of all but the newest of their kind a line is kept, and not the samples."""

    _newest: dict[tuple[object, ...], Loaded] = field(default_factory=dict)
    overview: list[dict[str, Any]] = field(default_factory=list)

    def add(self, found: Loaded) -> None:
        """One more record; unfinished ones are listed and not shown."""
        self.overview.append(about(found))
        record = found.record
        kind = (
            record.origin,
            (record.machine.name, record.machine.id, record.machine.num_threads),
            (record.model.name, record.model.revision),
            (record.placement.device, record.placement.dtype),
            tuple(sorted(record.inputs.items())),
        )
        held = self._newest.get(kind)
        if record.is_finished and (held is None or _replaces(record, held.record)):
            self._newest[kind] = found

    @property
    def shown(self) -> tuple[Column, ...]:
        """What stands side by side, what a text states first."""
        records = [found.record for found in self._newest.values()]
        records.sort(key=lambda record: (not record.is_stated, record.machine.name, record.started_at))
        return tuple(Column(label, record) for label, record in zip(_labels(records), records, strict=True))


def _replaces(one: RunRecord, held: RunRecord) -> bool:
    """Whether a record is shown in place of another, in whatever order they are read."""
    is_newer = one.started_at > held.started_at
    return stands_for(one, held) if is_newer else not stands_for(held, one)


def collect(found: Iterable[Loaded]) -> Columns:
    """All of them."""
    columns = Columns()
    for each in found:
        columns.add(each)
    return columns


def _labels(records: Sequence[RunRecord]) -> list[str]:
    """Machine, model and dtype, as far as they tell the records apart; threads where those do not."""
    parts = [
        (
            record.machine.name,
            record.model.name,
            record.placement.device,
            record.placement.dtype,
            f"{record.machine.num_threads} threads",
            record.machine.id,
            record.model.revision,
            ", ".join(f"{name} {digest}" for name, digest in record.inputs.items()) or "no files of the user's",
        )
        for record in records
        if not record.is_stated
    ]
    telling = [0]
    for index in range(1, _NUM_PARTS):
        names = [[part[each] for each in telling] for part in parts]
        is_needed = index < _ALWAYS_TOLD or any(names.count(name) > 1 for name in names)
        if is_needed and len({part[index] for part in parts}) > 1:
            telling.append(index)
    labels = iter([", ".join(part[index] for index in telling) for part in parts])
    return [record.machine.name if record.is_stated else next(labels) for record in records]
