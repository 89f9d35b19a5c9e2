"""Laps: named parts of a run, timed inside it, so that arms alternate and a stream's tokens are told apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench_utils.measure.clock import Clock


class Laps:
    """Collects laps by name. Like samples they are read once, when all are taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[str, list[Any]] = {}
        self._seconds: dict[str, list[float]] = {}

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        """Time the body as one lap; a device is waited for on both sides."""
        mark = self._clock.begin()
        yield
        self._pending.setdefault(name, []).append(self._clock.end(mark))

    def record(self, name: str, seconds: float) -> None:
        """A time that no lap brackets, such as a request's latency over many steps."""
        self._seconds.setdefault(name, []).append(seconds)

    def clear(self) -> None:
        """Forget every lap: the warm-up's are none."""
        self._pending, self._seconds = {}, {}

    def read(self) -> dict[str, tuple[float, ...]]:
        """Seconds of every lap by name, in the order they were run, and a fresh start."""
        found = {name: self._clock.read(laps) for name, laps in self._pending.items()} | self._seconds
        self.clear()
        return {name: tuple(seconds) for name, seconds in found.items()}
