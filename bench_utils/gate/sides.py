"""The two sides of a gate: each a revision in a worktree of its own, built into an environment of its own.

What is installed where the gate runs, torch above all, is shared: an environment holds the project and only those
dependencies that differ.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock

from bench_utils.cache import cache_dir
from bench_utils.gate import load
from bench_utils.gate.refusal import BROKEN, GateRefusal
from bench_utils.gate.repository import Repository, Revision

_SHARED = "shared_with_the_gate.pth"
_REPOSITORY = "repository"
_TOLD_LINES = 12


@dataclass(frozen=True)
class Side:
    """A revision, ready to run: its interpreter and the folder of its claims."""

    name: str
    python: Path
    folder: Path


@contextmanager
def workshop(repository: Repository) -> Iterator[Path]:
    """A folder for one gate's worktrees and environments, gone at the end.

    Only one gate runs at a time for a user: two would slow each other. The system lets go of the lock however the
    process ends, so whatever lies here then was left by one that was killed, and is removed.

    Raises:
        GateRefusal: another gate is running.
    """
    home = cache_dir() / "gate"
    home.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home / "lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        reason = "another gate is running on this machine, and two would slow each other: wait for its end"
        raise GateRefusal("another-gate", reason) from error
    try:
        for left in home.glob("run-*"):
            _remove(left)
        folder = home / f"run-{os.getpid()}"
        folder.mkdir()
        try:
            (folder / _REPOSITORY).write_text(str(repository.top), encoding="utf-8")
            yield folder
        finally:
            _remove(folder)
    finally:
        lock.release()


def build(repository: Repository, revision: Revision, claims: str, folder: Path) -> Side:
    """Check a revision out and install it into an environment of its own, below `folder`.

    Raises:
        GateRefusal: it has no claims, or cannot be built.
    """
    name = revision.side
    tree = folder / name / "tree"
    repository.add_worktree(tree, revision.commit)
    project = tree / repository.prefix
    if not any((project / claims).rglob("bench_*.py")):
        reason = (
            f"{name} ({revision.told}) has no bench_*.py in {claims}: there is nothing to compare with. "
            "Gate from a commit that has the suite"
        )
        raise GateRefusal(f"{name}-without-suite", reason)
    return Side(name, _environment(folder / name, project, name), project / claims)


def _environment(folder: Path, project: Path, name: str) -> Path:
    """The interpreter of an environment of its own, with the project built into it where it can be built."""
    import virtualenv

    made = virtualenv.cli_run([str(folder / "env"), "--no-download", "--no-periodic-update"])
    python, packages = Path(made.creator.exe), Path(made.creator.purelib)
    (packages / _SHARED).write_text("".join(f"{path}\n" for path in _shared_paths()))
    if any((project / file).is_file() for file in ("pyproject.toml", "setup.py")):
        _install(python, project, folder / "wheel", name)
    return python


@contextmanager
def neighbours(number: int) -> Iterator[None]:
    """So many processes that are busy every now and then; they end with this one, however it ends."""
    command = [sys.executable, "-P", load.__file__]
    busy = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.communicate()


def own_environ() -> dict[str, str]:
    """The variables at hand without those that would lend its packages to another interpreter."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _install(python: Path, project: Path, wheels: Path, name: str) -> None:
    _pip(python, name, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(project))
    (wheel,) = map(str, wheels.glob("*.whl"))
    # Whatever version is shared, the side's own comes first; then what its dependencies lack or need otherwise.
    _pip(python, name, "install", "--no-deps", "--force-reinstall", wheel)
    _pip(python, name, "install", wheel)


def _pip(python: Path, name: str, *arguments: str) -> None:
    command = [str(python), "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(command, env=own_environ(), capture_output=True, text=True, check=False)
    if done.returncode:
        told = "\n".join(done.stderr.strip().splitlines()[-_TOLD_LINES:])
        raise GateRefusal(f"{name}-not-built", f"{name} cannot be built:\n{told}", BROKEN)


def _shared_paths() -> list[str]:
    """Where this process finds its packages. An editable project is not among them, but for this one.

    As lines of a .pth file they are searched last, and no .pth file in them is read.
    """
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    own = str(Path(__file__).resolve().parents[2])
    return [*installed, *([] if own in installed else [own])]


def _remove(folder: Path) -> None:
    """Remove a gate's folder, and what its repository knows of its worktrees; what says which one goes last."""
    note = folder / _REPOSITORY
    if note.is_file():
        with suppress(GateRefusal, OSError):  # it may be gone, or no repository any more
            Repository(Path(note.read_text(encoding="utf-8"))).forget_worktrees(folder)
    for each in folder.iterdir():
        if each != note:
            shutil.rmtree(each, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
