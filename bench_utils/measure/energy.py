"""Energy of a run in joules, from a counter that the machine keeps, or the reason there is none."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench_utils.measure.nvml import Nvml
from bench_utils.measure.reading import Reading, missing

POWERCAP = Path("/sys/class/powercap")
# NVML's counter moves about every 100 ms, and RAPL's every millisecond: a window begins and ends at a movement.
MIN_WINDOW_S = 1.0
LONGEST_WAIT_S = 0.5


class EnergySource(Protocol):
    """A counter of joules."""

    @property
    def name(self) -> str:
        """What is counted: the GPU, or the CPU's package."""

    def read_j(self) -> Reading:
        """Joules since some fixed moment."""


@dataclass(frozen=True)
class NvmlEnergy:
    """The GPU's own counter."""

    nvml: Nvml
    name: str = "nvml"

    def read_j(self) -> Reading:
        return self.nvml.energy_j()


@dataclass(frozen=True)
class RaplEnergy:
    """Linux RAPL: the CPU packages' counters, each wrapping at its own range."""

    zones: tuple[Path, ...]
    name: str = "rapl"

    def read_j(self) -> Reading:
        return Reading(sum(int((zone / "energy_uj").read_text()) for zone in self.zones) / 1e6)


def find_source(
    device_type: str,
    nvml: Nvml | None,
    nvml_reason: str = "",
    powercap: Path = POWERCAP,
    platform: str = sys.platform,
) -> EnergySource | Reading:
    """A counter of what the run works on, or a missing reading that says why there is none."""
    if device_type == "cuda":  # the CPU's joules would say nothing of a run on the GPU
        if nvml is None:
            return missing(nvml_reason or "no NVML")
        reading = nvml.energy_j()
        return NvmlEnergy(nvml) if reading.value is not None else reading
    if device_type != "cpu" or platform != "linux":
        return missing(f"no energy counter is read for {device_type} on {platform}")
    zones = tuple(sorted(zone for zone in powercap.glob("intel-rapl:*") if zone.name.count(":") == 1))
    if not zones:
        return missing("this machine shows no RAPL counter")
    try:
        for zone in zones:
            (zone / "energy_uj").read_text()
    except OSError as error:
        return missing(f"the RAPL counter is not readable ({type(error).__name__}): it needs permission")
    return RaplEnergy(zones)


def measure(
    run: Callable[[], object],
    source: EnergySource | Reading,
    *,
    synchronize: Callable[[], None] | None = None,
    timer: Callable[[], float] = time.perf_counter,
    min_window_s: float = MIN_WINDOW_S,
) -> Reading:
    """Joules per run, averaged over a window from one movement of the counter to another; idle power included."""
    if isinstance(source, Reading):
        return source
    wait = synchronize or (lambda: None)
    before = _at_a_movement(source, timer)
    if before.value is None:
        return before
    began, num_runs, last = timer(), 0, before.value
    while True:
        run()
        wait()
        num_runs += 1
        now, elapsed_s = source.read_j(), timer() - began
        if now.value is None:
            return now
        has_moved, last = now.value != last, now.value
        if elapsed_s >= min_window_s and (has_moved or elapsed_s >= min_window_s + LONGEST_WAIT_S):
            break
    if last <= before.value:
        return missing(f"the {source.name} counter did not move or wrapped around")
    return Reading((last - before.value) / num_runs)


def _at_a_movement(source: EnergySource, timer: Callable[[], float]) -> Reading:
    """The counter's reading just after it moved, or after the longest wait."""
    first, began = source.read_j(), timer()
    now = first
    while now.value is not None and now.value == first.value and timer() - began < LONGEST_WAIT_S:
        now = source.read_j()
    return now
