"""Which records stand side by side: the newest finished one of each machine, model, dtype and thread count."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_utils.history.comparison_view import about
from bench_utils.history.entries import RunRecord
from bench_utils.history.selection import Loaded


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
            record.machine.name,
            record.machine.num_threads,
            record.model.name,
            record.placement.device,
            record.placement.dtype,
        )
        held = self._newest.get(kind)
        if record.is_finished and (held is None or held.record.started_at < record.started_at):
            self._newest[kind] = found

    @property
    def shown(self) -> tuple[Column, ...]:
        """What stands side by side, what a text states first."""
        records = [found.record for found in self._newest.values()]
        records.sort(key=lambda record: (record.origin == "measured", record.machine.name, record.started_at))
        return tuple(Column(label, record) for label, record in zip(_labels(records), records, strict=True))


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
        )
        for record in records
        if record.origin == "measured"
    ]
    telling = [index for index in range(5) if index == 0 or len({part[index] for part in parts}) > 1]
    labels = iter([", ".join(part[index] for index in telling) for part in parts])
    return [next(labels) if record.origin == "measured" else record.machine.name for record in records]
