"""Clocks: how one sample is bracketed on each kind of device."""

import time
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """Brackets samples. A clock may defer reading until all samples are taken."""

    def now_s(self) -> float:
        """Host seconds, for budgets only."""

    def begin(self) -> Any:
        """Mark the start of a sample."""

    def end(self, mark: Any) -> Any:
        """Mark its end; the result is read later by `read`."""

    def read(self, pending: list[Any]) -> list[float]:
        """Seconds of every pending sample."""


class WallClock:
    """Host time around a device that is synchronised before and after (CPU needs no synchronising)."""

    def __init__(
        self, synchronize: Callable[[], None] | None = None, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._synchronize = synchronize
        self._timer = timer

    def now_s(self) -> float:
        return self._timer()

    def begin(self) -> float:
        if self._synchronize is not None:
            self._synchronize()
        return self._timer()

    def end(self, mark: float) -> float:
        if self._synchronize is not None:
            self._synchronize()
        return self._timer() - mark

    def read(self, pending: list[float]) -> list[float]:
        return pending


class CudaEventClock:
    """CUDA events on the working stream, read once at the end so that no sample waits for another."""

    def __init__(self, cuda: Any | None = None) -> None:
        if cuda is None:
            import torch

            cuda = torch.cuda
        self._cuda = cuda

    def now_s(self) -> float:
        return time.perf_counter()

    def begin(self) -> Any:
        self._cuda.synchronize()  # an idle device: the sample is not queued behind its restore
        return self._record()

    def end(self, mark: Any) -> Any:
        return (mark, self._record())

    def read(self, pending: list[Any]) -> list[float]:
        self._cuda.synchronize()
        return [start.elapsed_time(stop) / 1e3 for start, stop in pending]  # milliseconds to seconds

    def _record(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event


def clock_for(device_type: str) -> Clock:
    """The clock of a device type: 'cpu', 'cuda' or 'mps'."""
    return CudaEventClock() if device_type == "cuda" else wall_clock_for(device_type)


def wall_clock_for(device_type: str) -> WallClock:
    """Host time around a synchronised device: what a bare loop would be timed with."""
    return WallClock(synchronize=synchronizer(device_type))


def synchronizer(device_type: str) -> Callable[[], None] | None:
    """What waits for the device to finish; None where the host does the work itself."""
    import torch

    return {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device_type)
