"""NVIDIA's management library, by GPU UUID; every figure that cannot be read says why."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench_utils.measure.reading import Reading, missing

NO_GPU = "no CUDA device in use"


class NvmlError(RuntimeError):
    """The library is absent or refuses; the message is the reason that readings carry."""


@dataclass(frozen=True)
class GpuState:
    """What can change during a run: clocks in MHz, power limit in W, temperature in C, throttle reasons."""

    sm_clock_mhz: Reading
    memory_clock_mhz: Reading
    power_limit_w: Reading
    temperature_c: Reading
    throttle_reasons: tuple[str, ...]


class Nvml:
    """One GPU through NVML. `library` is the pynvml module (a stand-in in tests)."""

    def __init__(self, uuid: str, library: Any | None = None) -> None:
        if library is None:
            import pynvml

            library = pynvml
        self._library: Any = library
        self._errors = (self._library.NVMLError,)
        try:
            self._library.nvmlInit()
            self._handle = self._library.nvmlDeviceGetHandleByUUID(uuid)
        except self._errors as error:
            raise NvmlError(f"NVML: {error}") from error

    def read(self, function: str, *arguments: Any) -> Reading:
        """The number that an NVML function of this device returns, or its error."""
        try:
            return Reading(getattr(self._library, function)(self._handle, *arguments))
        except self._errors as error:
            return missing(f"NVML: {error}")
        except AttributeError:
            return missing(f"NVML: this version has no {function}")

    def driver_version(self) -> str:
        """The driver's version, or why it is unknown."""
        try:
            return str(self._library.nvmlSystemGetDriverVersion())
        except self._errors as error:
            return f"unknown ({error})"

    def device_bytes(self) -> Reading:
        """Memory in use on the whole device."""
        try:
            return Reading(int(self._library.nvmlDeviceGetMemoryInfo(self._handle).used))
        except self._errors as error:
            return missing(f"NVML: {error}")

    def free_bytes(self) -> Reading:
        """Memory that nothing uses on the whole device."""
        try:
            return Reading(int(self._library.nvmlDeviceGetMemoryInfo(self._handle).free))
        except self._errors as error:
            return missing(f"NVML: {error}")

    def process_bytes(self, pid: int) -> Reading:
        """Memory of one process; containers and WDDM hide it."""
        try:
            running = self._library.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._errors as error:
            return missing(f"NVML: {error}")
        used = {process.pid: process.usedGpuMemory for process in running}
        if used.get(pid) is None:
            return missing("NVML does not show this process (a container, or a display driver model)")
        return Reading(int(used[pid]))

    def energy_j(self) -> Reading:
        """Joules since the driver loaded (Volta and newer, updated about every 100 ms)."""
        millijoules = self.read("nvmlDeviceGetTotalEnergyConsumption")
        return millijoules if millijoules.value is None else Reading(millijoules.value / 1e3)

    def state(self) -> GpuState:
        """Clocks, power limit, temperature and throttle reasons now."""
        library = self._library
        limit = self.read("nvmlDeviceGetEnforcedPowerLimit")
        return GpuState(
            sm_clock_mhz=self.read("nvmlDeviceGetClockInfo", getattr(library, "NVML_CLOCK_SM", 1)),
            memory_clock_mhz=self.read("nvmlDeviceGetClockInfo", getattr(library, "NVML_CLOCK_MEM", 2)),
            power_limit_w=limit if limit.value is None else Reading(limit.value / 1e3),
            temperature_c=self.read("nvmlDeviceGetTemperature", getattr(library, "NVML_TEMPERATURE_GPU", 0)),
            throttle_reasons=self._throttle_reasons(),
        )

    def _throttle_reasons(self) -> tuple[str, ...]:
        bits = self.read("nvmlDeviceGetCurrentClocksEventReasons")
        if bits.value is None:
            return (f"unknown ({bits.reason})",)
        return decode_throttle_reasons(int(bits.value), vars(self._library))


def decode_throttle_reasons(bits: int, names: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the set bits, from the library's own constants; idleness is no throttling."""
    prefix = "nvmlClocksEventReason"
    return tuple(
        sorted(
            name.removeprefix(prefix)
            for name, bit in names.items()
            if name.startswith(prefix)
            and isinstance(bit, int)
            and bit.bit_count() == 1
            and bits & bit
            and not name.endswith("GpuIdle")
        )
    )


def cuda_uuid(device_index: int, visible: str | None = None) -> str:
    """The UUID of torch's device, as NVML spells it: never guess by index, both number differently.

    A MIG slice is known by the UUID in CUDA_VISIBLE_DEVICES (`visible`): torch reports its parent's.
    """
    listed = (os.environ.get("CUDA_VISIBLE_DEVICES", "") if visible is None else visible).split(",")
    if device_index < len(listed) and listed[device_index].strip().startswith("MIG-"):
        return listed[device_index].strip()
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device_index).uuid}"


def for_device(device_type: str, index: int = 0) -> Nvml | None:
    """NVML for torch's CUDA device; None elsewhere.

    Raises:
        NvmlError: a CUDA device that NVML cannot show.
    """
    return Nvml(cuda_uuid(index)) if device_type == "cuda" else None


def find(device_type: str, index: int = 0) -> tuple[Nvml | None, str]:
    """The same or None, and why there is none."""
    try:
        return for_device(device_type, index), NO_GPU
    except (NvmlError, ImportError) as error:
        return None, str(error)
