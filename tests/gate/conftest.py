"""A copy of the example project as a repository, and the command as a user runs it there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench_utils.cli import app
from bench_utils.gate import sides

# Another project's claims: they are run there, not here.
collect_ignore = ["example_project"]
_CLAIMS = "from bench_utils.cli import main; main()"
EXAMPLE = Path(__file__).parent / "example_project"
COUNTED = ("--select", "T2", "--budget", "3")


class Project:
    """A repository in a folder of its own, with a cache of its own."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit("the first")

    def git(self, *arguments: str) -> str:
        settings = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *settings, *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("add", "--all", "--", ".", ":(exclude)results")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, before: str, after: str) -> None:
        text = (self.folder / name).read_text()
        assert before in text
        (self.folder / name).write_text(text.replace(before, after))

    def copy_once_more(self, message: str = "one more copy") -> str:
        """A commit whose totals are as before, at the cost of one kernel more."""
        self.edit("arithmetic/__init__.py", "return values @", "return values.clone() @")
        return self.commit(message)

    def start(self, *arguments: str) -> subprocess.Popen:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CLAIMS_")}
        return subprocess.Popen(
            [sys.executable, "-c", _CLAIMS, "gate", *arguments],
            cwd=self.folder,
            env={**environ, "XDG_CACHE_HOME": str(self.cache), "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """The exit status, the output and the errors of `claims gate` in a process of its own."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=280)
        return process.returncode, output, errors

    def gate(self, *arguments: str) -> tuple[int, str, str]:
        """The same in this process, and without environments: both sides run with this interpreter."""
        found = CliRunner().invoke(app, ["gate", *arguments], env={"COLUMNS": "200"})
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return found.exit_code, found.stdout, found.stderr

    @property
    def gate_record(self) -> Path:
        """The record of the only gate so far."""
        (path,) = (self.folder / "results").glob("*/gate/*-gate.json")
        return path

    @property
    def left_behind(self) -> list[str]:
        """Folders of gates in the cache, and worktrees that the repository knows besides its own."""
        runs = [path.name for path in self.cache.rglob("gate/run-*")]
        return [*runs, *self.git("worktree", "list").splitlines()[1:]]


@pytest.fixture
def built_project(tmp_path, isolated_cache):
    """The example as it is, to be built."""
    return Project(tmp_path / "project", isolated_cache)


@pytest.fixture
def project(built_project, monkeypatch):
    """The example without a build: its package is found in the tree."""
    (built_project.folder / "pyproject.toml").unlink()
    built_project.commit("nothing to build")
    monkeypatch.setattr(sides, "_environment", lambda *_: Path(sys.executable))
    monkeypatch.chdir(built_project.folder)
    return built_project
