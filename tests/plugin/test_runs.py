"""What a user sees of a good run, and what is left on disk."""

import json
import platform
from pathlib import Path

from tests.plugin.support import CLAIMS, only_record


def test_a_run_ends_with_a_scoreboard_and_one_record(suite, pytester):
    result = suite()
    result.assert_outcomes(passed=5)
    text = result.stdout.str()
    assert text.index("Scoreboard") > text.index("benchmark 'T1 fast is faster'")  # last, where a reader looks
    result.stdout.fnmatch_lines(["*5/5*", "*T1 fast is faster*2x [[]sic]*holds*", "*T2 two is two*2 = 2*holds*"])
    found = only_record(pytester)
    assert found.is_finished
    assert len(found.cases["T1[slow-1]"].samples_s) >= 5
    assert found.cases["T1[slow-2]"].counters == {"n": 2}
    assert found.cases["T1[fast-1]"].memory["rss_peak_bytes"].value > 0
    assert found.verdicts["T1"].figures["ratio"].value > 1
    assert found.roofline.peak_flop_per_s == {"float32": 1e13}


def test_a_record_holds_no_path_no_host_and_no_user(suite, pytester, tiny_folder):
    failing = CLAIMS.replace(
        "time.sleep(0.004", "open('/home/alice/secret/model.bin') if n == 2 else time.sleep(0.004"
    )
    suite(source=failing)
    (path,) = Path(pytester.path).glob("results/*/*.json")
    text = path.read_text()
    assert "No such file" in text
    assert "alice" not in text
    assert str(pytester.path) not in text
    assert str(tiny_folder.parent) not in text
    assert len(platform.node()) < 4 or platform.node() not in text
    assert Path.home().as_posix() + "/" not in text


def test_pytest_benchmarks_json_has_the_very_samples_and_no_host(suite, pytester):
    suite("--benchmark-json=out.json")
    document = json.loads((Path(pytester.path) / "out.json").read_text())
    assert "node" not in document["machine_info"]
    by_name = {b["name"]: b for b in document["benchmarks"]}
    samples = only_record(pytester).cases["T1[slow-1]"].samples_s
    assert by_name["test[slow-1]"]["stats"]["data"] == list(samples)
    assert by_name["test[slow-1]"]["extra_info"]["n"] == 1
    assert "test[2]" in by_name  # counted, in the JSON though not in the table


def test_min_rounds_and_max_time_are_honoured(suite, pytester):
    suite("--benchmark-min-rounds=9", "--benchmark-max-time=0.001")
    assert [len(only_record(pytester).cases[f"T1[{arm}-1]"].samples_s) for arm in ("slow", "fast")] == [9, 9]


def test_cprofile_profiles_a_real_run(suite):
    result = suite("--benchmark-cprofile=tottime", "-k", "slow")
    result.stdout.fnmatch_lines(["*sleep*"])


def test_without_timing_claims_are_checked_and_no_record_is_written(suite, pytester):
    result = suite(timing="--benchmark-disable")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*timing was switched off*inconclusive*", "*correctness only, no record*"])
    assert not list(Path(pytester.path).glob("results/**/*.json"))


def test_skipping_benchmarks_prepares_nothing(suite, pytester):
    result = suite(timing="--benchmark-skip", model="smolm2")
    result.assert_outcomes(skipped=5)
    assert not (Path(pytester.path) / "results").exists()


def test_collecting_only_prepares_nothing(suite, pytester):
    result = suite("--collect-only", model="smolm2")
    assert result.ret == 0
    assert not (Path(pytester.path) / "results").exists()


def test_a_run_without_claims_is_left_alone(pytester):
    pytester.makepyfile("def test_nothing():\n    pass\n")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    assert "Scoreboard" not in result.stdout.str()
