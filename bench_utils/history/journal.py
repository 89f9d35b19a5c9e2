"""The record of a run in progress: every finished case is safe before the next one starts."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from bench_utils.history import records
from bench_utils.history.entries import RunRecord
from bench_utils.measure.machine import MachineState
from bench_utils.measure.measurement import BROKEN, Measurement, Param
from bench_utils.measure.roofline import Roofline
from bench_utils.verdict import Verdict


class Journal:
    """A record and the file behind it. A failing disk costs the file, never what was measured."""

    def __init__(self, record: RunRecord, path: Path) -> None:
        self.record = record
        self.path = path
        # Cases that an earlier, interrupted run measured; those that failed are tried again.
        self._resumed = {key: found for key, found in record.cases.items() if found.validity.code not in BROKEN}
        self.write_error = ""

    @property
    def short_path(self) -> str:
        """'results/<machine>/<file>', as a reader may type it."""
        return "/".join(self.path.parts[-3:])

    @property
    def num_resumed(self) -> int:
        """How many cases an earlier run left."""
        return len(self._resumed)

    def resumed(self, key: str, version: str | None = None) -> Measurement | None:
        """What an earlier run measured for a case, if the claim's code is still of that version."""
        found = self._resumed.get(key)
        return found if found is not None and version in (None, found.version) else None

    def measured(self, claim_id: str) -> dict[tuple[Param, ...], Measurement]:
        """Every case of a claim that the record holds, whichever run measured it."""
        return {found.key: found for found in self.record.cases.values() if found.claim == claim_id}

    def add(self, measurement: Measurement, roofline: Roofline) -> None:
        """Keep a finished case; the limits may have been read again for it."""
        self.record.add(measurement)
        self.record.roofline = roofline
        self._write()

    def finish(
        self, about: Mapping[str, Mapping[str, str]], verdicts: Mapping[str, Verdict], state: MachineState
    ) -> None:
        """Keep the verdicts and the machine's state; close the record where every planned case is there."""
        for claim_id, verdict in verdicts.items():
            self.record.add_verdict(claim_id, about[claim_id], verdict)
        self.record.state_after = state
        self.record.is_finished = self.record.is_whole
        self._write()

    def _write(self) -> None:
        try:
            records.write(self.record, self.path)
            self.write_error = ""
        except (OSError, ValueError) as error:
            self.write_error = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"


def begin(results: Path, record: RunRecord, *, resume: bool) -> Journal:
    """Open the record of a run below results/<machine>/, or go on with the newest unfinished one like it.

    It is written at once, so that an unwritable folder is found out before anything is measured.

    Raises:
        RecordError: the folder belongs to another machine.
        OSError: it cannot be written.
    """
    folder = records.folder_for(results, record.machine.name, record.machine.id)
    found = records.unfinished_like(folder, record) if resume else None
    if found is not None:
        path, earlier = found
        return Journal(earlier, path)
    path = folder / records.file_name(record)
    for number in itertools.count(2):
        if not path.exists():
            break
        path = folder / records.file_name(record).replace(".json", f"-{number}.json")
    records.write(record, path)
    return Journal(record, path)


def last_durations(results: Path, machine_name: str, profile: str) -> dict[str, float]:
    """Seconds that each case took when it was last run: what the time left is guessed from.

    From this machine's records of the profile, the newest first, then from any other machine's.
    """
    others = sorted(folder for folder in results.glob("*/") if folder.name not in (machine_name, "asv"))
    durations: dict[str, float] = {}
    for folder in (results / machine_name, *others):
        for _, record in records.records_in(folder):
            if record.profile == profile:
                for key, found in record.cases.items():
                    durations.setdefault(key, found.duration_s)
    return durations
