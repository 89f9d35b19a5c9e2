"""Records: strict, whole after a kill or a full disk, and never mixed between machines."""

import json
from dataclasses import replace

import pytest

from bench_utils.cache import write_json
from bench_utils.history import journal, records
from bench_utils.history.records import RecordError, RunRecord, SourceState
from bench_utils.measure.machine import MachineState
from bench_utils.measure.measurement import Bound, Measurement, Validity
from bench_utils.measure.reading import Reading, missing
from bench_utils.measure.roofline import Roofline
from bench_utils.measure.statistics import Interval
from bench_utils.verdict import Outcome, Verdict

MEASURED = Measurement(
    claim="A2",
    case={"arm": "cached", "num_tokens": 48},
    samples_s=(0.1, 0.2, 0.15),
    runs_per_sample=3,
    counters={"tokens_fed": 87},
    notes={"scale": "full"},
    memory={"rss_peak_bytes": Reading(5), "nvml_device_bytes": missing("no GPU")},
    energy=missing("no counter"),
    bound=Bound("memory", 0.7, None),
    validity=Validity(),
    duration_s=1.5,
)
STATE = MachineState(Reading(0.1), missing("unknown"), None)


def record(**changes):
    machine = {"name": "box", "id": "abc", "num_threads": 2, "versions": {"torch": "2.13"}}
    fields = {
        "started_at": "2026-01-02T03:04:05Z",
        "profile": "full",
        "source": SourceState("c0ffee", False),
        "model": {"name": "tiny", "revision": "r1", "note": ""},
        "placement": {"device": "cpu", "dtype": "float32", "why": "as asked"},
        "machine": machine,
        "roofline": {},
        "state_before": {},
    }
    return RunRecord(**{**fields, **changes})


def test_a_record_reads_back_as_it_was_written(tmp_path):
    written = record()
    written.add(MEASURED)
    written.add_verdict("A2", {"title": "t"}, Verdict(Outcome.HOLDS, figures={"x": Interval(2.0, 1.0, 3.0)}))
    records.write(written, tmp_path / "r.json")
    found = records.read(tmp_path / "r.json")
    assert found == written
    assert found.cases["A2[cached-48]"] == MEASURED
    assert found.verdicts["A2"]["outcome"] == "holds"


def test_nan_is_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "r.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_disk_leaves_the_old_record_whole(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write_json(path, {"a": 1})
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a readable record"),
        ("{", "not a readable record"),
        ("[]", "schema version None"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1}', "does not have the fields"),
    ],
)
def test_what_is_no_record_is_an_error_with_its_name(tmp_path, text, why):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(RecordError, match=rf"bad\.json.*{why}"):
        records.read(tmp_path / "bad.json")


def test_every_finished_case_is_in_the_file_before_the_next(tmp_path):
    running = journal.begin(tmp_path, record(), resume=False)
    running.add(MEASURED, Roofline())
    half = records.read(running.path)
    assert list(half.cases) == ["A2[cached-48]"]
    assert not half.is_finished
    running.finish({"A2": {}}, {"A2": Verdict(Outcome.HOLDS)}, STATE)
    assert records.read(running.path).is_finished


def test_a_run_goes_on_where_one_like_it_stopped(tmp_path):
    killed = journal.begin(tmp_path, record(), resume=False)
    killed.add(MEASURED, Roofline())
    resumed = journal.begin(tmp_path, record(started_at="2026-01-02T04:00:00Z"), resume=True)
    assert resumed.path == killed.path
    assert list(resumed.resumed) == ["A2[cached-48]"]


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": "quick"},
        {"source": SourceState("other", False)},
        {"model": {"name": "tiny", "revision": "r2", "note": ""}},
        {"placement": {"device": "cpu", "dtype": "bfloat16", "why": ""}},
        {"machine": {"name": "box", "id": "abc", "num_threads": 2, "versions": {"torch": "2.14"}}},
    ],
)
def test_another_run_does_not_go_on_from_it(tmp_path, changes):
    journal.begin(tmp_path, record(), resume=False).add(MEASURED, Roofline())
    fresh = journal.begin(tmp_path, record(started_at="2026-01-02T04:00:00Z", **changes), resume=True)
    assert not fresh.resumed


def test_a_finished_run_is_not_resumed(tmp_path):
    done = journal.begin(tmp_path, record(), resume=False)
    done.finish({}, {}, STATE)
    fresh = journal.begin(tmp_path, record(started_at="2026-01-02T04:00:00Z"), resume=True)
    assert fresh.path != done.path


def test_two_machines_never_share_a_folder(tmp_path):
    journal.begin(tmp_path, record(), resume=False)
    other = record(machine={"name": "box", "id": "def", "num_threads": 2, "versions": {}})
    with pytest.raises(RecordError, match=r"another machine \(id abc, this one is def\).*--claims-machine"):
        journal.begin(tmp_path, other, resume=False)


def test_two_runs_of_one_second_do_not_overwrite_each_other(tmp_path):
    first = journal.begin(tmp_path, record(), resume=False)
    second = journal.begin(tmp_path, record(), resume=False)
    assert first.path != second.path


def test_a_failed_write_is_kept_in_mind_and_forgotten_once_it_works(tmp_path, monkeypatch):
    running = journal.begin(tmp_path, record(), resume=False)
    with monkeypatch.context() as patched:
        patched.setattr(records, "write", lambda *_a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        running.add(MEASURED, Roofline())
        assert running.write_error == "OSError: No space left on device"
    running.add(replace(MEASURED, claim="A3"), Roofline())
    assert not running.write_error
    assert len(records.read(running.path).cases) == 2


def test_the_last_runs_durations_are_what_the_time_left_is_guessed_from(tmp_path):
    journal.begin(tmp_path, record(), resume=False).add(MEASURED, Roofline())
    assert journal.last_durations(tmp_path, "box", "full") == {"A2[cached-48]": 1.5}
    assert journal.last_durations(tmp_path, "another box", "full") == {"A2[cached-48]": 1.5}
    assert journal.last_durations(tmp_path, "box", "quick") == {}
    assert journal.last_durations(tmp_path / "nothing", "box", "full") == {}


def test_a_tree_without_git_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert records.source_state(tmp_path) == SourceState(None, None)
