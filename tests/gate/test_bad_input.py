"""What cannot be judged is refused, each with a message, a code and an exit status of its own."""

import json

from tests.gate.conftest import COUNTED


def test_an_unknown_revision(project):
    status, _, errors = project.gate("nowhere")
    assert status == 2
    assert "there is no revision 'nowhere' here" in errors
    assert "unknown-revision" in errors


def test_a_base_that_is_empty_such_as_an_unset_variable(project):
    status, _, errors = project.gate("")
    assert status == 2
    assert "unknown-revision" in errors


def test_a_revision_that_looks_like_an_option(project):
    assert project.gate("--", "--all")[0] == 2


def test_a_folder_without_a_repository(project):
    project.git("init", "--quiet")
    (project.folder / ".git").rename(project.folder.parent / "elsewhere")
    status, _, errors = project.gate("main")
    assert status == 2
    assert "no git repository" in errors


def test_a_base_without_the_suite(project):
    project.git("checkout", "--quiet", "--orphan", "other")
    project.git("rm", "-r", "--quiet", "-f", "benchmarks")
    project.commit("no suite")
    status, _, errors = project.gate("other", "main")
    assert status == 2
    assert "base-without-suite" in errors
    assert not project.left_behind


def test_a_base_whose_claims_do_not_import(project):
    good = project.git("rev-parse", "HEAD")
    for name in ("bytes", "total"):
        project.edit(f"benchmarks/bench_{name}.py", "import torch\n", "import torch\nimport nowhere_to_be_found\n")
    bad = project.commit("cannot be imported")
    status, _, errors = project.gate(bad, good)
    assert status == 3
    assert "base-not-importable" in errors
    assert "nowhere_to_be_found" in errors


def test_a_module_that_head_alone_cannot_import_is_broken_and_the_others_are_compared(project):
    project.edit("benchmarks/bench_total.py", "import torch\n", "import torch\nimport nowhere_to_be_found\n")
    project.commit("one is broken")
    status, output, _ = project.gate("HEAD~1", *COUNTED)
    assert status == 3
    assert "cannot be imported in head" in output
    assert "2 cases compared" in output


def test_no_case_in_common(project):
    project.edit("benchmarks/bench_bytes.py", '"T2"', '"T3"')
    project.commit("another name")
    status, _, errors = project.gate("HEAD~1", "--select", "T2", "--select", "T3")
    assert status == 4
    assert "no-common-case" in errors


def test_a_claim_that_nobody_has_names_the_nearest(project):
    status, output, errors = project.gate("HEAD", "HEAD", "--select", "T4", "--json")
    assert status == 2
    assert "choose one of T1, T2" in errors
    assert json.loads(output)["error"] == "unknown-case"


def test_an_acceptance_without_a_reason(project):
    status, _, errors = project.gate("HEAD", "HEAD", "--accept", "T2 time")
    assert status == 2
    assert "accepts nothing" in errors


def test_two_questions_at_once_or_none(project):
    for arguments in ((), ("HEAD", "--records", "a.json", "b.json"), ("HEAD", "HEAD", "--self-test")):
        status, _, errors = project.gate(*arguments)
        assert status == 2
        assert "say what to judge" in errors


def test_a_project_that_cannot_be_built(built_project):
    built_project.write("pyproject.toml", "[build-system]\nrequires = []\nbuild-backend = 'missing'\n")
    built_project.commit("no such backend")
    status, _, errors = built_project.run("HEAD")
    assert status == 3
    assert "base-not-built" in errors
    assert not built_project.left_behind


def test_nothing_to_go_on_with(project):
    status, _, errors = project.gate("--self-test", "HEAD", "--select", "T1[1000]", "--budget", "0.1", "--resume")
    assert status == 2
    assert "nothing-to-resume" in errors
