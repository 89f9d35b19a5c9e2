"""The whole gate on a small project of its own: what blocks, what does not, and what it says."""

import json

from tests.gate.conftest import COUNTED


def test_nothing_differs_and_it_passes(project):
    status, output, _ = project.gate("HEAD", "HEAD", *COUNTED)
    assert status == 0
    assert "2 cases compared" in output
    assert "verdict: pass" in output
    assert not project.left_behind


def test_one_redundant_copy_is_caught_by_counting_without_a_single_timing(project):
    project.copy_once_more()
    status, output, _ = project.gate("HEAD~1", *COUNTED)
    assert status == 1
    assert "T2[10]" in output
    assert "dispatched_kernels  3 -> 4 (+33.3 %)" in output
    assert "times" not in output
    back = project.gate("HEAD", "HEAD~1", *COUNTED)
    assert back[0] == 0
    assert "better" in back[1], "the same step the other way is shown as an improvement"


def test_without_a_budget_everything_is_counted_and_nothing_timed(project):
    status, output, errors = project.gate("HEAD", "HEAD", "--budget", "0")
    assert status == 0
    assert "4 cases compared, and nothing timed" in output
    assert "pair 1" not in errors


def test_a_change_that_is_meant_is_accepted_by_a_commit_of_the_same_change(project):
    project.copy_once_more("one more copy\n\nClaims-accept: T2[*] dispatched_kernels: it is kept for the caller")
    status, output, _ = project.gate("HEAD~1", *COUNTED)
    assert status == 0
    assert "accepted: it is kept for the caller" in output
    assert "3 -> 4" in output, "what is accepted is still told"
    project.edit("arithmetic/__init__.py", "values.clone()", "values.clone().clone()")
    project.commit("and another one")
    assert project.gate("HEAD~1", *COUNTED)[0] == 1, "an acceptance speaks of its own change alone"


def test_a_claim_that_fails_in_head_alone_blocks(project):
    project.edit("arithmetic/__init__.py", "return values @ torch.ones_like(values)", "return values.sum() + 1")
    project.commit("wrong")
    status, output, _ = project.gate("HEAD~1", *COUNTED)
    assert status == 1
    assert "fails in head alone: failed: 11.0 is not the total of 10 ones" in output


def test_a_claim_that_fails_on_both_sides_is_a_broken_benchmark(project):
    project.edit("arithmetic/__init__.py", "return values @ torch.ones_like(values)", "return values.sum() + 1")
    project.commit("wrong")
    status, output, _ = project.gate("HEAD", "HEAD", *COUNTED)
    assert status == 3
    assert "fails in both" in output


def test_a_vanished_case_blocks_and_a_new_one_is_named(project):
    project.edit("benchmarks/bench_bytes.py", "[[10, 20]]", "[[10, 20, 40]]")
    project.commit("one size more")
    project.edit("benchmarks/bench_bytes.py", "[[10, 20, 40]]", "[[10, 20, 80]]")
    project.commit("another one")
    status, output, _ = project.gate("HEAD~1", *COUNTED)
    assert status == 3
    assert "T2[40]  vanished" in output
    assert "base has no such case" in output


def test_a_changed_workload_is_compared_with_nothing_and_does_not_pass_silently(project):
    project.edit("benchmarks/bench_bytes.py", "torch.ones(num_values)", "torch.ones(num_values).clone()")
    project.commit("the claim itself does more")
    status, output, _ = project.gate("HEAD~1", *COUNTED, "--cannot-tell", "pass")
    assert "its claim's code changed" in output
    assert json.loads(project.gate_record.read_text())["status"] == 4
    assert status == 0


def test_the_working_tree_is_judged_where_it_is_named_and_stays_as_it_is(project):
    project.edit("arithmetic/__init__.py", "return values @", "return values.clone() @")
    project.write("arithmetic/new.py", "")
    before = project.git("status", "--porcelain")
    refused = project.gate("HEAD", *COUNTED)
    assert refused[0] == 2
    assert "dirty-tree" in refused[2]
    assert "arithmetic/__init__.py" in refused[2]
    assert project.gate("HEAD", ".", *COUNTED)[0] == 1
    assert project.gate("HEAD", "HEAD", *COUNTED)[0] == 0, "a named revision is what was committed"
    assert project.git("status", "--porcelain", "--", ".", ":(exclude)results") == before


def test_a_slower_total_is_found_by_its_times_and_a_project_is_built_with_what_it_needs(built_project):
    """All of it as a user runs it in another repository: the wheel of each side is what runs."""
    project = built_project
    project.edit("arithmetic/__init__.py", "import torch\n", "import time\n\nimport torch\n")
    project.edit("arithmetic/__init__.py", "    return", "    time.sleep(0.004)\n    return")
    project.commit("slower, with the same counts")
    status, output, errors = project.run("HEAD~1", "--select", "T1[1000]", "--budget", "4")
    assert status == 1, output + errors
    assert "slower: " in output
    assert "T1[1000]" in output
    document = json.loads(project.gate_record.read_text())
    assert len(document["pairs"]) >= 14, "seven pairs, and seven more that confirm it"
    assert document["status"] == 1
    assert str(project.folder.parent) not in project.gate_record.read_text()
    assert not project.left_behind


def test_other_forms_for_scripts_and_for_a_pull_request(project):
    project.copy_once_more()
    status, output, errors = project.gate("HEAD~1", *COUNTED, "--json")
    told = json.loads(output)
    assert status == told["status"] == 1
    assert told["verdict"] == "regression"
    assert told["findings"][0]["blocks"] is True
    assert "building base" in errors, "progress is no part of the answer"
    status, output, _ = project.gate("HEAD~1", *COUNTED, "--markdown")
    assert status == 1
    assert "| T2\\[10\\] |" in output


def test_a_self_test_keeps_its_pairs_goes_on_with_them_and_says_what_they_are_worth(project):
    arguments = ("--self-test", "HEAD", "--select", "T1[1000]", "--budget", "0.15")
    status, output, _ = project.gate(*arguments)
    assert status == 0
    assert "claims gate" in output
    assert "--benchmark-compare-fail=mean:10%" in output
    (path,) = (project.folder / "results").glob("*/gate/*-self-test.json")
    num_pairs = len(json.loads(path.read_text())["pairs"])
    assert num_pairs >= 1
    assert project.gate(*arguments, "--resume", "--markdown")[0] == 0
    assert len(json.loads(path.read_text())["pairs"]) > num_pairs
    status, output, _ = project.gate("--self-test", str(path), "--json")
    assert json.loads(output)["self_test"][0]["rule"] == "claims gate"
    assert not project.left_behind


def test_a_self_test_of_what_cannot_be_timed_says_why(project):
    works_once = (
        "import torch\n\ncalls = []\n\n\ndef once():\n    assert not calls, 'only once'\n    calls.append(0)\n"
    )
    project.edit("arithmetic/__init__.py", "import torch\n", works_once)
    project.edit("arithmetic/__init__.py", "    return values", "    once()\n    return values")
    project.commit("works once a process")
    status, _, errors = project.gate("--self-test", "HEAD", "--select", "T1[1000]", "--budget", "0.15")
    assert status == 4
    assert "only once" in errors
