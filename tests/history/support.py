"""A made-up record, to be changed where a test wants it otherwise."""

from bench_utils.history.entries import MachineEntry, ModelEntry, PlacementEntry, RunRecord, SourceState
from bench_utils.measure.measurement import Bound, Lap, Measurement, Validity
from bench_utils.measure.reading import Reading, missing

MEASURED = Measurement(
    claim="A2",
    case={"arm": "cached", "num_tokens": 48},
    samples_s=(0.1, 0.2, 0.15),
    runs_per_sample=3,
    laps={"prefill": Lap((0.05, 0.06), Bound("compute", None, 0.6)), "decode": Lap((0.01,))},
    counters={"tokens_fed": 87},
    notes={"scale": "full"},
    memory={"rss_peak_bytes": Reading(5), "nvml_device_bytes": missing("no GPU")},
    energy=missing("no counter"),
    bound=Bound("memory", 0.7, None),
    validity=Validity(),
    duration_s=1.5,
)
ABOUT = {"title": "the cache makes generation faster", "kind": "physical", "chapter": "9x"}


def machine(**changes):
    fields = {
        **{"name": "box", "id": "abc", "cpu": "Some CPU", "architecture": "x86_64", "os": "linux", "num_cores": 2},
        **{"num_logical_cpus": 2, "num_usable_cpus": 2, "num_threads": 2, "memory_bytes": 2**30, "container": ""},
        **{"gpu": None, "versions": {"torch": "2.13"}},
    }
    return MachineEntry(**{**fields, **changes})


def record(**changes):
    fields = {
        "started_at": "2026-01-02T03:04:05Z",
        "profile": "full",
        "source": SourceState("c0ffee", False),
        "model": ModelEntry("tiny", "r1"),
        "placement": PlacementEntry("cpu", "float32", "as asked"),
        "machine": machine(),
    }
    return RunRecord(**{**fields, **changes})
