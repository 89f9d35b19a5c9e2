"""The chapter's own record: what the claims state, under names that a run has too."""

from pathlib import Path

from typer.testing import CliRunner

from bench_utils import chapter, cli
from bench_utils.discovery import find_claims
from bench_utils.history import records

ROOT = Path(__file__).parent.parent


def test_the_committed_record_of_the_chapter_is_what_the_claims_state():
    written = records.read(ROOT / "results" / chapter.MACHINE_NAME / chapter.FILE_NAME)
    assert written == chapter.chapter_record(find_claims(ROOT / "benchmarks")[0]), (
        "write it: claims records chapter"
    )


def test_every_stated_case_and_counter_is_one_of_the_claims_own():
    """A case that no run has could never be compared."""
    for claim in find_claims(ROOT / "benchmarks")[0]:
        stated = claim.stated
        assert {*stated.counters, *stated.laps_s} <= set(claim.cases()), claim.id


def test_stated_figures_and_counters_have_the_names_that_a_full_run_gives():
    """The newest committed run names them; one that it lacks would stand beside nothing."""
    measured = [records.read(path) for path in sorted((ROOT / "results").glob("amd-*/*.json"))][-1]
    told = records.read(ROOT / "results" / chapter.MACHINE_NAME / chapter.FILE_NAME)
    for claim_id, verdict in told.verdicts.items():
        if claim_id in measured.verdicts:
            assert set(verdict.figures) <= set(measured.verdicts[claim_id].figures), claim_id
    for key, case in told.cases.items():
        if key in measured.cases:
            assert set(case.counters) <= set(measured.cases[key].counters), key
            assert set(case.laps) <= set(measured.cases[key].laps), key


def test_the_chapter_is_written_from_any_folder_of_claims(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, ["records", "chapter", str(ROOT / "benchmarks")])
    assert result.exit_code == 0
    assert (tmp_path / "results" / chapter.MACHINE_NAME / chapter.FILE_NAME).is_file()
