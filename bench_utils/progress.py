"""Progress on anything over two seconds: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text


class FetchProgress:
    """A download's bar; satisfies pypi-simple's ProgressTracker."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._num_bytes = 0

    def __enter__(self) -> "FetchProgress":
        self._num_bytes = 0
        self._progress = Progress(
            TextColumn("fetching from the package index"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._progress.start()
        self._task = self._progress.add_task("fetch", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._progress is not None
        self._progress.stop()
        if error is None:
            self._console.print(f"fetched {self._num_bytes:,} B from the package index")

    def update(self, increment: int) -> None:
        """Count bytes that came."""
        assert self._progress is not None
        self._num_bytes += increment
        self._progress.update(self._task, advance=increment)


class CaseProgress:
    """The cases of a run: which one, how many, how long still. Redraws only between cases: no timing sees it."""

    def __init__(self, console: Console, expected_s: dict[str, float]) -> None:
        self._console = console
        self._expected_s = expected_s
        self._num_done = 0
        self._spent_s = 0.0
        # What the cases that are done took, of those that an earlier run took long enough over to compare.
        self._compared_s = self._compared_expected_s = 0.0
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}", markup=False),
                TextColumn("{task.description}", markup=False),
                console=console,
                auto_refresh=False,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("", total=len(expected_s), left="")

    def begin(self, key: str) -> None:
        """A case starts."""
        if self._progress is not None:
            self._progress.update(self._task, description=key, left=self._left(), refresh=True)

    def end(self, key: str, outcome: str, seconds: float) -> None:
        """A case ended."""
        self._num_done += 1
        self._spent_s += seconds
        if expected_s := self._expected_s.pop(key, 0.0):
            self._compared_s += seconds
            self._compared_expected_s += expected_s
        total = self._num_done + len(self._expected_s)
        if self._progress is not None:
            self._progress.update(self._task, completed=self._num_done, left=self._left(), refresh=True)
        else:
            line = f"{self._num_done:>3}/{total} {key} {outcome} {seconds:.1f} s {self._left()}"
            self._console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()

    def _left(self) -> str:
        if not self._expected_s:
            return ""
        known = sum(self._expected_s.values())
        unknown = sum(not seconds for seconds in self._expected_s.values())
        pace = self._spent_s / self._num_done if self._num_done else 0.0
        # Another machine's, or another day's, speed is told from the cases done so far.
        speed = self._compared_s / self._compared_expected_s if self._compared_expected_s > 1.0 else 1.0
        left_s = known * speed + unknown * pace
        if not left_s:
            return ""
        return f"(about {_in_words(left_s)} left)"


def _in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


@contextmanager
def steps(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """A line that names the step under way; plain lines where there is no terminal."""
    if console.is_terminal:
        with console.status(Text(title)) as status:  # a title may hold a path, which is no markup
            yield lambda step: status.update(Text(f"{title}: {step}"))
    else:
        console.print(f"{title} ...", markup=False, highlight=False)
        yield lambda _step: None


class PairProgress:
    """The pairs of a gate: which one, which case, how much of the budget is left. Redraws between cases only."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = ""
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False), console=console, auto_refresh=False, transient=True
            )
            self._progress.start()
            self._task = self._progress.add_task("")

    def begin(self, number: int, left_s: float, num_cases: int) -> None:
        """A pair starts."""
        self._said = f"pair {number}, {num_cases} cases, at most {_in_words(max(0.0, left_s))} left"
        if self._progress is None:
            self._console.print(self._said, markup=False, highlight=False)
        self.case("")

    def case(self, key: str) -> None:
        """A case of it is done."""
        if self._progress is not None:
            self._progress.update(self._task, description=f"{self._said} {key}", refresh=True)

    def close(self) -> None:
        """Remove the line."""
        if self._progress is not None:
            self._progress.stop()
