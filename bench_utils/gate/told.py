"""What a gate tells, in whatever form: its record, and how far this machine's verdicts can be trusted."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_utils.gate import record
from bench_utils.gate.figures import Figures, Share
from bench_utils.gate.findings import Finding
from bench_utils.gate.record import GateRecord
from bench_utils.gate.rule import Judged, Rule
from bench_utils.history.paths import without_paths


@dataclass(frozen=True)
class Told:
    """A gate's record, and the newest self-test of its machine with its figures, the gate's own rule first."""

    found: GateRecord
    path: str
    level: float
    test: GateRecord | None
    figures: Sequence[Figures]

    def as_json(self) -> dict[str, Any]:
        """For scripts: all but the samples, which lie in the record."""
        found = self.found
        return {
            "verdict": found.verdict,
            "status": found.status,
            "kind": found.kind,
            "base": asdict(found.base),
            "head": asdict(found.head),
            "machine": found.machine.name,
            "model": found.model,
            "dtype": found.dtype,
            "device": found.device,
            "profile": found.profile,
            "num_compared": found.num_compared,
            "num_skipped": found.num_skipped,
            "num_pairs": len(found.pairs),
            "findings": [self._finding(each) for each in found.findings],
            "times": {key: self._time(key, each) for key, each in found.times.items()},
            "self_test": [_figures(each) for each in self.figures],
            "record": self.path,
        }

    def _finding(self, each: Finding) -> dict[str, Any]:
        return {
            **asdict(each),
            "told": without_paths(each.told),
            "weight": each.weight.value,
            "blocks": each.blocks,
        }

    def _time(self, key: str, each: Judged) -> dict[str, Any]:
        told = {"state": each.state.value, "reason": without_paths(each.reason)}
        return {**asdict(each), **told, "min_effect": self.found.min_effects[key]}


def told_of(found: GateRecord, path: Path | None, results: Path, rule: Rule) -> Told:
    """The record with what is known of its machine; two records are judged by a rule that no self-test knows."""
    test = found if found.kind == "self-test" else None
    if found.kind == "gate" and found.pairs:
        earlier = (each for _, each in record.self_tests(results, found.machine.id))
        test = next((each for each in earlier if vouches(each, found)), None)
    return Told(found, path.as_posix() if path else "", rule.level, test, test.figures if test else [])


def vouches(test: GateRecord, found: GateRecord) -> bool:
    """Whether a self-test is whole, and of the same kind of run on a machine that did nothing else."""
    kinds = [(each.model, each.profile, each.device, each.dtype) for each in (test, found)]
    return bool(test.figures) and not test.num_neighbours and kinds[0] == kinds[1]


def _figures(each: Figures) -> dict[str, Any]:
    return {
        "rule": each.name,
        "false_alarms": _share(each.alarms),
        "undecided_runs": _share(each.undecided_runs),
        "seen": {by: _share(share) for by, share in each.seen.items()},
        "undecided": {by: _share(share) for by, share in each.undecided.items()},
    }


def _share(share: Share) -> dict[str, Any]:
    interval = share.interval
    return {
        "num": share.num,
        "out_of": share.out_of,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
    }
