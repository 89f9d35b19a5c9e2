"""Records: strict, whole after a kill or a full disk, and never mixed between machines."""

import json
import subprocess
from dataclasses import replace

import pytest

from bench_utils.cache import write_json
from bench_utils.history import journal, records
from bench_utils.history.entries import ModelEntry, PlacementEntry, SourceState
from bench_utils.history.schema import RecordError
from bench_utils.measure.machine import MachineState
from bench_utils.measure.measurement import Validity
from bench_utils.measure.reading import Reading, missing
from bench_utils.measure.roofline import Roofline
from bench_utils.measure.statistics import Interval
from bench_utils.verdict import Outcome, Verdict
from tests.history.support import ABOUT, MEASURED, machine, record

STATE = MachineState(Reading(0.1), missing("unknown"), None)


def test_a_record_reads_back_as_it_was_written(tmp_path):
    written = record()
    written.add(MEASURED)
    written.add_verdict("A2", ABOUT, Verdict(Outcome.HOLDS, figures={"x": Interval(2.0, 1.0, 3.0)}))
    records.write(written, tmp_path / "r.json")
    found = records.read(tmp_path / "r.json")
    assert found == written
    assert found.cases["A2[cached-48]"] == MEASURED
    assert found.verdicts["A2"].outcome == "holds"


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
        ('{"schema_version": "2"}', "schema version '2'"),
        ('{"schema_version": true}', "schema version True"),
        ('{"schema_version": 1}', "does not have the fields of a record: started_at: Field required"),
        ('{"schema_version": 1, "source": {}, "cases": [], "machine": {}}', "does not have the fields"),
        ('{"schema_version": 1, "started_at": NaN}', "NaN is no JSON"),
        ('{"schema_version": 2}', "was edited after it was written"),
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
    running.finish({"A2": ABOUT}, {"A2": Verdict(Outcome.HOLDS)}, STATE)
    assert records.read(running.path).is_finished


def test_a_run_goes_on_where_one_like_it_stopped(tmp_path):
    killed = journal.begin(tmp_path, record(), resume=False)
    killed.add(MEASURED, Roofline())
    resumed = journal.begin(tmp_path, record(started_at="2026-01-02T04:00:00Z"), resume=True)
    assert resumed.path == killed.path
    assert resumed.num_resumed == 1
    assert resumed.resumed("A2[cached-48]", MEASURED.version) == MEASURED
    assert resumed.resumed("A2[cached-48]", "another version of the claim") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": "quick"},
        {"source": SourceState("other", False)},
        {"source": SourceState("c0ffee", True, "edited")},
        {"model": ModelEntry("tiny", "r2")},
        {"placement": PlacementEntry("cpu", "bfloat16")},
        {"machine": machine(versions={"torch": "2.14"})},
    ],
)
def test_another_run_does_not_go_on_from_it(tmp_path, changes):
    journal.begin(tmp_path, record(), resume=False).add(MEASURED, Roofline())
    fresh = journal.begin(tmp_path, record(started_at="2026-01-02T04:00:00Z", **changes), resume=True)
    assert not fresh.num_resumed


def test_a_case_that_failed_is_kept_and_tried_again(tmp_path):
    broken = replace(MEASURED, validity=Validity("failed", "3 is not 2"))
    journal.begin(tmp_path, record(), resume=False).add(broken, Roofline())
    again = journal.begin(tmp_path, record(), resume=True)
    assert records.read(again.path).cases["A2[cached-48]"].validity.code == "failed"
    assert again.resumed("A2[cached-48]") is None


def test_a_record_is_finished_only_when_every_planned_case_is_there(tmp_path):
    planned = record(planned=["A2[cached-48]", "A2[cached-96]"])
    running = journal.begin(tmp_path, planned, resume=False)
    running.add(MEASURED, Roofline())
    running.finish({}, {}, STATE)
    assert not records.read(running.path).is_finished
    rest = journal.begin(tmp_path, record(planned=["A2[cached-96]"]), resume=True)
    rest.add(replace(MEASURED, case={"arm": "cached", "num_tokens": 96}), Roofline())
    rest.finish({}, {}, STATE)
    assert records.read(running.path).is_finished
    assert len(rest.measured("A2")) == 2


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("cannot open /home/alice/models/x.safetensors: gone", "cannot open <path>: gone"),
        (r"no C:\\Users\\alice\\models here".replace("\\\\", "\\"), "no <path> here"),
        ("in /Users/Alice Smith/x y/z now", "in <path> now"),
        ("25 tok/s at 1/16 of 3/4, O(T^2)/O(T)", "25 tok/s at 1/16 of 3/4, O(T^2)/O(T)"),
        ("a/relative/name", "a/relative/name"),
    ],
)
def test_a_records_words_hold_no_absolute_path(text, kept):
    held = record()
    held.add(replace(MEASURED, validity=Validity("error", text), notes={"note": text}))
    held.add_verdict("A2", ABOUT, Verdict(Outcome.INVALID, reason=text))
    found = held.cases["A2[cached-48]"]
    assert (found.validity.reason, found.notes["note"], held.verdicts["A2"].reason) == (kept,) * 3


def test_an_edit_a_new_file_and_a_commit_are_told_apart_and_results_are_not_counted(tmp_path):
    def git(*arguments):
        name = ["-c", "user.name=t", "-c", "user.email=t@t.example"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    states = [records.source_state(tmp_path)]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "r.json").write_text("{}")
    states.append(records.source_state(tmp_path))
    (tmp_path / "a.py").write_text("2")
    states.append(records.source_state(tmp_path))
    (tmp_path / "b.py").write_text("3")
    states.append(records.source_state(tmp_path))
    assert states[0] == states[1]
    assert not states[0].is_dirty
    assert len({state.changes for state in states}) == 3


def test_a_finished_run_is_not_resumed(tmp_path):
    done = journal.begin(tmp_path, record(), resume=False)
    done.finish({}, {}, STATE)
    fresh = journal.begin(tmp_path, record(started_at="2026-01-02T04:00:00Z"), resume=True)
    assert fresh.path != done.path


def test_two_machines_never_share_a_folder(tmp_path):
    journal.begin(tmp_path, record(), resume=False)
    other = record(machine=machine(id="def"))
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
