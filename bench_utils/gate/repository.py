"""What a gate asks of git: commits, worktrees, and the working tree as a commit that no branch has."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench_utils.gate.refusal import BROKEN, GateRefusal
from bench_utils.history.entries import SourceState
from bench_utils.history.records import source_state

WORKING_TREE = "."
_FEW_FILES = 3
_AS_IT_IS: Mapping[str, str] = {}
_NOBODY = {f"GIT_{who}_{what}": "claims" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
# A hook's or an alias's own repository must not be taken for the one at hand.
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")


@dataclass(frozen=True)
class Revision:
    """One side's revision: what is checked out, what a record says of it, and what the user called it."""

    side: str
    commit: str
    state: SourceState
    told: str


@dataclass(frozen=True)
class Repository:
    """A repository by its topmost folder; `prefix`: where in it the project lies."""

    top: Path
    prefix: str = ""

    def revision(self, side: str, named: str | None, scratch: Path, results: Path) -> Revision:
        """What is named: a revision, '.' for the working tree as it is, None for the commit that it is at.

        Files below `results` are no change of the code.

        Raises:
            GateRefusal: there is no such revision, or files differ from the commit that is taken for granted.
        """
        if named == WORKING_TREE:
            state = source_state(self.top / self.prefix)
            return Revision(side, self._snapshot(scratch), state, "the working tree")
        changed = self._changed_files(results) if named is None else []
        if changed:
            shown = ", ".join(changed[:_FEW_FILES]) + (" and others" if len(changed) > _FEW_FILES else "")
            message = (
                f"{len(changed)} files differ from the commit that would be measured ({shown}): commit them, "
                "or say what is meant: `claims gate BASE .` takes the working tree, `... BASE HEAD` does not"
            )
            raise GateRefusal("dirty-tree", message)
        name = "HEAD" if named is None else named
        commit = self.commit_of(name)
        return Revision(side, commit, SourceState(commit, False), f"{name}, {commit[:12]}")

    def commit_of(self, revision: str) -> str:
        """The commit that a revision names.

        Raises:
            GateRefusal: there is none.
        """
        try:
            return self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        except GateRefusal as error:
            shallow = self._git("rev-parse", "--is-shallow-repository") == "true"
            remedy = (
                "this clone is shallow: git fetch --unshallow" if shallow else "see git branch --all and git log"
            )
            raise GateRefusal("unknown-revision", f"there is no revision {revision!r} here; {remedy}") from error

    def _changed_files(self, results: Path) -> list[str]:
        """What the working tree has otherwise than its commit, new files included."""
        top, kept = self.top.resolve(), (self.top / self.prefix / results).resolve()
        excluded = [f":(exclude,top){kept.relative_to(top).as_posix()}"] if kept.is_relative_to(top) else []
        wanted = ("status", "--porcelain", "--untracked-files=normal", "--no-renames", "--", self.prefix or ".")
        told = self._git(*wanted, *excluded)
        return [line[3:] for line in told.splitlines()]

    def _snapshot(self, scratch: Path) -> str:
        """The working tree as it is, new files included, as a commit that no branch has; nothing is staged."""
        index = {"GIT_INDEX_FILE": str(scratch / "index")}
        self._git("read-tree", "HEAD", environ=index)
        self._git("add", "--all", environ=index)
        tree = self._git("write-tree", environ=index)
        return self._git("commit-tree", tree, "-p", "HEAD", "-m", "the working tree", environ=_NOBODY)

    def num_missing(self, commit: str, other: str) -> int:
        """How many commits of `commit` the other one lacks."""
        return int(self._git("rev-list", "--count", f"{other}..{commit}"))

    def trailers(self, base: Revision, head: Revision, key: str) -> list[str]:
        """The values of a trailer in the messages of the commits that `head` adds to `base`."""
        form = f"--format=%(trailers:key={key},valueonly,unfold)"
        told = self._git("log", "--no-show-signature", form, f"{base.commit}..{head.commit}")
        return [line.strip() for line in told.splitlines() if line.strip()]

    def add_worktree(self, path: Path, commit: str) -> None:
        """Check a commit out at `path`, without hooks, and with its submodules."""
        self._git("worktree", "add", "--quiet", "--detach", str(path), commit)
        if (path / ".gitmodules").is_file():
            Repository(path)._git("submodule", "--quiet", "update", "--init", "--recursive")

    def forget_worktrees(self, folder: Path) -> None:
        """Let go of the worktrees below a folder, half made ones too, and of no others."""
        for line in self._git("worktree", "list", "--porcelain").splitlines():
            path = line.removeprefix("worktree ")
            if path != line and Path(path).resolve().is_relative_to(folder.resolve()):
                # Twice: one that was killed while it was made is still locked.
                self._git("worktree", "remove", "--force", "--force", path, is_checked=False)

    def _git(self, *arguments: str, is_checked: bool = True, environ: Mapping[str, str] = _AS_IT_IS) -> str:
        """What git says.

        Raises:
            GateRefusal: it fails.
        """
        inherited = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        done = subprocess.run(
            ["git", "-c", f"core.hooksPath={os.devnull}", *arguments],
            cwd=self.top,
            env={**inherited, **environ},
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
        )
        if done.returncode and is_checked:
            raise GateRefusal("git-failed", f"git {arguments[0]}: {done.stderr.strip()}", BROKEN)
        return done.stdout.rstrip("\n")


def find(folder: Path) -> Repository:
    """The repository that a folder lies in.

    Raises:
        GateRefusal: it lies in none, or git is not installed.
    """
    try:
        top = Repository(folder)._git("rev-parse", "--show-toplevel")
        prefix = Repository(folder)._git("rev-parse", "--show-prefix")
    except FileNotFoundError as error:
        raise GateRefusal("no-git", "git is not installed, and revisions are built with it") from error
    except GateRefusal as error:
        reason = "this folder is in no git repository: gate revisions of one, or two records with --records"
        raise GateRefusal("no-repository", reason) from error
    return Repository(Path(top), prefix)
