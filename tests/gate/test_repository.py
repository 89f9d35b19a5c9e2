"""What the gate asks of git, and what it leaves behind there: nothing."""

import os
import shutil
from pathlib import Path

import pytest

from bench_utils.gate import repository, sides
from bench_utils.gate.refusal import GateRefusal
from bench_utils.gate.repository import Repository
from tests.gate.conftest import Project

RESULTS = Path("results")


@pytest.fixture
def source(project):
    return repository.find(project.folder)


def test_a_project_may_lie_below_the_repositorys_top(project):
    project.write("below/benchmarks/bench_x.py", "")
    found = repository.find(project.folder / "below")
    assert (found.top, found.prefix) == (project.folder, "below/")


def test_the_working_tree_becomes_a_commit_with_new_files_and_without_ignored_ones(project, source, tmp_path):
    project.write(".gitignore", "*.log\n")
    project.write("new.py", "x = 1\n")
    project.write("noise.log", "")
    project.edit("arithmetic/__init__.py", "ones_like", "zeros_like")
    before = project.git("status", "--porcelain")
    revision = source.revision("head", ".", tmp_path, RESULTS)
    names = project.git("ls-tree", "-r", "--name-only", revision.commit).splitlines()
    assert "new.py" in names
    assert "noise.log" not in names
    assert "zeros_like" in project.git("show", f"{revision.commit}:arithmetic/__init__.py")
    assert revision.state.is_dirty
    assert project.git("status", "--porcelain") == before
    assert project.git("branch", "--all", "--contains", revision.commit) == ""


def test_the_commit_at_hand_is_only_taken_for_granted_where_nothing_differs_from_it(project, source, tmp_path):
    assert source.revision("head", None, tmp_path, RESULTS).commit == project.git("rev-parse", "HEAD")
    project.write("results/box/record.json", "{}")
    assert source.revision("head", None, tmp_path, RESULTS).commit, "records are no change of the code"
    project.write("new.py", "")
    with pytest.raises(GateRefusal, match=r"1 files differ .*new\.py"):
        source.revision("head", None, tmp_path, RESULTS)
    assert source.revision("head", "HEAD", tmp_path, RESULTS).commit == project.git("rev-parse", "HEAD")


def test_a_shallow_clone_says_what_it_lacks(project, tmp_path):
    project.commit("the third")
    project.git("clone", "--quiet", "--depth", "1", f"file://{project.folder}", str(tmp_path / "shallow"))
    shallow = repository.find(tmp_path / "shallow")
    with pytest.raises(GateRefusal, match="this clone is shallow"):
        shallow.revision("base", "HEAD~1", tmp_path, RESULTS)


def test_trailers_are_those_of_the_commits_at_hand(project, source, tmp_path):
    project.commit("before\n\nClaims-accept: A * : an old one")
    base = source.revision("base", "HEAD", tmp_path, RESULTS)
    project.commit("one\n\nClaims-accept: A[1] bytes: rows\n are aligned\nReviewed-by: Ada")
    project.commit("two\n\nClaims-accept: B time: slower")
    head = source.revision("head", "HEAD", tmp_path, RESULTS)
    assert source.trailers(base, head, "Claims-accept") == ["B time: slower", "A[1] bytes: rows are aligned"]


def test_hooks_of_the_repository_do_not_run(project, source, tmp_path):
    hook = project.folder / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    source.add_worktree(tmp_path / "tree", project.git("rev-parse", "HEAD"))
    assert (tmp_path / "tree/benchmarks").is_dir()


def test_a_hooks_own_repository_is_not_taken_for_this_one(project, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    assert repository.find(project.folder).top == project.folder


def test_a_workshop_is_gone_at_the_end_with_its_worktrees(project, source):
    with sides.workshop(source) as folder:
        source.add_worktree(folder / "base/tree", project.git("rev-parse", "HEAD"))
        assert len(project.git("worktree", "list").splitlines()) == 2
    assert not folder.exists()
    assert len(project.git("worktree", "list").splitlines()) == 1


def test_what_a_killed_gate_left_is_removed_by_the_next_one_half_made_worktrees_too(project, source):
    with sides.workshop(source) as folder:
        home = folder.parent
    left = home / "run-1"
    (left / "base").mkdir(parents=True)
    (left / "repository").write_text(str(project.folder))
    source.add_worktree(left / "base/tree", project.git("rev-parse", "HEAD"))
    # As git leaves it where it is killed while it makes one: locked, without a checkout.
    project.git("worktree", "lock", str(left / "base/tree"), "--reason", "initializing")
    shutil.rmtree(left / "base/tree")
    (home / "run-2").mkdir()  # killed before it wrote a word
    with sides.workshop(source):
        assert [path.name for path in home.glob("run-*")] == [f"run-{os.getpid()}"]
        assert len(project.git("worktree", "list").splitlines()) == 1


def test_another_gate_at_the_same_time_is_refused_and_one_after_it_is_not(source):
    with sides.workshop(source), pytest.raises(GateRefusal, match="another gate"), sides.workshop(source):
        pass
    with sides.workshop(source) as folder:
        assert folder.is_dir()


def test_a_worktree_of_the_users_own_stays(project, source, tmp_path):
    project.git("worktree", "add", "--quiet", str(tmp_path / "mine"), "--detach")
    project.git("worktree", "lock", str(tmp_path / "mine"))
    with sides.workshop(source):
        pass
    assert str(tmp_path / "mine") in project.git("worktree", "list")
    assert "locked" in project.git("worktree", "list", "--porcelain")


def test_a_worktree_that_is_not_there_for_a_while_is_not_forgotten(project, source, tmp_path):
    project.git("worktree", "add", "--quiet", str(tmp_path / "mine"), "--detach")
    (tmp_path / "mine").rename(tmp_path / "unmounted")
    with sides.workshop(source):
        pass
    (tmp_path / "unmounted").rename(tmp_path / "mine")
    assert Repository(tmp_path / "mine").commit_of("HEAD")


def test_what_a_gate_left_of_a_repository_that_is_gone_stops_no_other(project, source):
    with sides.workshop(source) as folder:
        home = folder.parent
    (home / "run-1").mkdir()
    (home / "run-1/repository").write_text(str(home / "nowhere"))
    (home / "run-2").mkdir()
    (home / "run-2/repository").write_text(str(home))  # a folder, and no repository
    with sides.workshop(source):
        assert [path.name for path in home.glob("run-*")] == [f"run-{os.getpid()}"]


def test_results_are_no_change_wherever_they_lie(project, source, tmp_path):
    project.write("out/box/record.json", "{}")
    for results in (Path("out"), project.folder / "out"):
        assert source.revision("head", None, tmp_path, results).commit
    with pytest.raises(GateRefusal, match="1 files differ"):
        source.revision("head", None, tmp_path, RESULTS)


def test_submodules_are_checked_out(project, source, tmp_path, monkeypatch):
    other = Project(tmp_path / "other", tmp_path / "cache")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    project.git("submodule", "--quiet", "add", str(other.folder), "below")
    source.add_worktree(tmp_path / "tree", project.commit("with a submodule"))
    assert (tmp_path / "tree/below/arithmetic/__init__.py").is_file()
