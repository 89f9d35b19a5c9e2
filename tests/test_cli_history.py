"""The commands about machines and records: what they print, and what they say of bad input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench_utils import cli
from bench_utils.history import records, schema
from bench_utils.history.entries import ModelEntry
from bench_utils.measure.measurement import Lap
from bench_utils.verdict import Outcome, Verdict
from tests.history.support import ABOUT, MEASURED, machine, record

ROOT = Path(__file__).parent.parent


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of two machines, one of which has two records, an older one unfinished."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    for name, started in (("box", "2026-01-02T03:04:05Z"), ("other", "2026-01-03T00:00:00Z")):
        held = record(started_at=started, machine=machine(name=name, id=name), is_finished=True)
        held.add(MEASURED if name == "box" else replace(MEASURED, samples_s=(0.2, 0.4, 0.3)))
        held.add_verdict("A2", ABOUT, Verdict(Outcome.HOLDS if name == "box" else Outcome.DOES_NOT_HOLD))
        records.write(held, Path("results") / name / "r.json")
    unfinished = record(started_at="2026-02-01T00:00:00Z", machine=machine(id="box"), planned=["A2[cached-48]"])
    records.write(unfinished, Path("results/box/unfinished.json"))
    return tmp_path / "results"


def claims(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


# --- compare


def test_two_machines_are_compared_the_differing_verdict_first(results):
    result = claims("compare", "box", "other")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "machine box other" in lines
    assert "A2 the cache makes generation faster holds does not hold here differs" in lines
    assert "A2[cached-48] 150 ms [100, 200] 300 ms [200, 400] 2.00x [1.00, 4.00] 2.00x 70% 70%" in lines


def test_a_comparison_for_scripts_is_one_document(results):
    found = json.loads(claims("compare", "results/box/r.json", "other", "--json").stdout)
    assert (found["a"]["machine"], found["b"]["machine"]) == ("box", "other")
    assert found["claims"][0]["cases"][0]["times"][0]["b_over_a"]["value"] == pytest.approx(2)


def test_unlike_models_are_said_and_no_case_is_called(results):
    held = records.read(results / "other" / "r.json")
    records.write(replace(held, model=ModelEntry("[b]big[/b]", "r9")), results / "other" / "r.json")
    result = claims("compare", "box", "other")
    assert "unlike: model tiny (r1) against [b]big[/b] (r9): no case is called faster or slower" in result.stdout
    assert "not compared, model tiny (r1) against [b]big[/b] (r9): A2[cached-48]" in result.stdout
    assert "2.00x" not in result.stdout


def test_many_laps_are_shown_when_asked_for(results):
    laps = {f"lap {number}": Lap((0.1, 0.1)) for number in range(9)}
    for name in ("box", "other"):
        held = record(started_at="2026-03-01T00:00:00Z", machine=machine(name=name), is_finished=True)
        held.add(replace(MEASURED, laps=laps))
        records.write(held, results / name / "laps.json")
    assert "A2[cached-48]: 9 laps more, see --laps" in claims("compare", "box", "other").stdout
    assert "A2[cached-48]: lap 8" in claims("compare", "box", "other", "--laps").stdout


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("box", "nowhere"), "no record, folder or machine 'nowhere'; machines: bad, box, other"),
        (("results/box/unfinished.json", "box"), "holds no finished record: finish one with --claims-resume"),
        (("results/bad/r.json", "box"), "bad/r.json is not a readable record"),
    ],
)
def test_what_cannot_be_compared_is_exit_status_2(results, names, words):
    (results / "bad").mkdir()
    (results / "bad" / "r.json").write_text("{")
    result = claims("compare", *names)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_broken_record_beside_a_good_one_is_named_and_the_rest_goes_on(results):
    (results / "box" / "truncated.json").write_text((results / "box" / "r.json").read_text()[:500])
    edited = json.loads((results / "box" / "r.json").read_text())
    edited["verdicts"]["A2"]["outcome"] = "inconclusive"
    (results / "box" / "edited.json").write_text(json.dumps(edited))
    (results / "box" / "future.json").write_text('{"schema_version": 9}')
    result = claims("compare", "box", "other")
    assert result.exit_code == 1
    assert "2.00x" in result.stdout
    assert "left out: box/edited.json was edited after it was written" in result.stderr
    assert "left out: box/truncated.json is not a readable record" in result.stderr
    assert "left out: box/future.json has schema version 9; this program reads 1 to 2" in result.stderr


# --- records


def test_the_list_has_a_line_for_each_record(results):
    lines = [" ".join(line.split()) for line in claims("records", "list").stdout.splitlines()]
    assert "box 2026-01-02T03:04:05Z tiny float32 full 1 yes r.json" in lines
    assert "box 2026-02-01T00:00:00Z tiny float32 full 0 0 of 1 unfinished.json" in lines
    listed = json.loads(claims("records", "list", "other", "--json").stdout)
    assert [(each["machine"], each["num_cases"]) for each in listed] == [("other", 1)]


def test_an_empty_folder_says_what_to_run_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = claims("records", "list")
    assert result.exit_code == 2
    assert "there is no record in results: run `pytest benchmarks --benchmark-only` first" in result.stderr


def test_validating_counts_the_valid_and_names_the_others(results):
    assert claims("records", "validate").stdout == "3 valid\n"
    (results / "box" / "bad.json").write_text("[]")
    result = claims("records", "validate", "box")
    assert (result.exit_code, result.stdout) == (1, "2 valid\n")
    assert "left out: box/bad.json has schema version None" in result.stderr


def test_migrating_seals_older_records_and_leaves_the_others(results):
    path = results / "box" / "r.json"
    document = json.loads(path.read_text())
    held = records.read(path)
    del document["sha256"], document["origin"]
    path.write_text(json.dumps({**document, "schema_version": 1}))
    result = claims("records", "migrate")
    assert "box/r.json is of version 2 now" in result.stdout
    assert "1 migrated, 2 were of version 2 already" in result.stdout
    assert json.loads(path.read_text())["schema_version"] == 2
    assert records.read(path) == held


def test_the_schema_is_printed():
    assert json.loads(claims("records", "schema").stdout) == schema.json_schema()


def test_the_folder_of_all_machines_is_all_records_and_no_schema(results):
    (results / "record.schema.json").write_text("{}")
    result = claims("records", "validate", "results")
    assert (result.exit_code, result.stdout) == (0, "3 valid\n")


def test_a_machine_comes_before_a_folder_of_its_name_and_nothing_is_no_name(results):
    (results.parent / "box").mkdir()
    assert claims("records", "validate", "box").stdout == "2 valid\n"
    result = claims("records", "list", "")
    assert result.exit_code == 2
    assert "named by nothing" in result.stderr


@pytest.mark.parametrize("changes", [{"profile": "quick"}, {"planned": ["A2[cached-48]"]}])
def test_a_quick_or_partial_run_does_not_stand_for_a_full_one(results, changes):
    whole = record(
        is_finished=True, planned=[f"A2[{number}]" for number in range(10)], started_at="2026-01-01T00:00:00Z"
    )
    less = record(is_finished=True, **{"planned": whole.planned, "started_at": "2026-05-01T00:00:00Z", **changes})
    for name, held in (("1", whole), ("2", less)):
        records.write(held, results / "third" / f"{name}.json")
    sides = json.loads(claims("compare", "third", "third", "--json").stdout)
    assert sides["a"]["started_at"] == "2026-01-01T00:00:00Z"


# --- report


@pytest.fixture
def bundle(monkeypatch):
    """The drawing library takes seconds to bundle."""
    monkeypatch.setattr("bench_utils.history.report.page.vega_bundle", lambda: "/* the library */")


def test_the_report_is_one_file_of_the_records_found(results, bundle):
    result = claims("report", "-o", "pages/all.html")
    assert result.exit_code == 0
    assert "pages/all.html: 2 of 3 records side by side" in result.stdout.replace("\\", "/")
    written = (results.parent / "pages" / "all.html").read_text("utf-8")
    assert "does not hold here" in written
    claims("report", "box", "-o", "one.html")
    assert "does not hold here" not in (results.parent / "one.html").read_text("utf-8")


def test_a_broken_record_is_named_in_the_page_and_by_the_exit_status(results, bundle):
    (results / "box" / "bad.json").write_text("{")
    result = claims("report")
    assert result.exit_code == 1
    assert "left out: box/bad.json is not a readable record" in result.stderr
    assert "Left out: box/bad.json is not a readable record" in (results.parent / "report.html").read_text("utf-8")


def test_the_report_in_markdown_is_printed(results):
    result = claims("report", "--markdown")
    assert result.exit_code == 0
    assert "| **A2** the cache makes generation faster | 9x | **holds**" in result.stdout
    assert not (results.parent / "report.html").exists()


def test_without_a_finished_record_the_report_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "run `pytest benchmarks --benchmark-only` first" in claims("report").stderr
    records.write(record(planned=["A2[cached-48]"]), tmp_path / "results" / "box" / "r.json")
    result = claims("report")
    assert result.exit_code == 2
    assert "no record is finished: finish one with --claims-resume" in result.stderr
