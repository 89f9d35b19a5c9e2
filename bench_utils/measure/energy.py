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
# NVML's counter moves about every 100 ms: a window of ten updates is the shortest worth believing.
MIN_WINDOW_S = 1.0


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
    nvml: Nvml | None, powercap: Path = POWERCAP, platform: str = sys.platform
) -> EnergySource | Reading:
    """A counter of this machine, or a missing reading that says why there is none."""
    if nvml is not None:
        reading = nvml.energy_j()
        return NvmlEnergy(nvml) if reading.value is not None else reading
    if platform != "linux":
        return missing(f"no energy counter is read on {platform}")
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
    timer: Callable[[], float] = time.perf_counter,
    min_window_s: float = MIN_WINDOW_S,
) -> Reading:
    """Joules per run, averaged over enough runs to fill the window; idle power is included."""
    if isinstance(source, Reading):
        return source
    before = source.read_j()
    if before.value is None:
        return before
    began, num_runs = timer(), 0
    while timer() - began < min_window_s:
        run()
        num_runs += 1
    after = source.read_j()
    if after.value is None:
        return after
    if after.value <= before.value:
        return missing(f"the {source.name} counter did not move or wrapped around")
    return Reading((after.value - before.value) / num_runs)
