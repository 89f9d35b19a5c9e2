"""The machine as asv keeps machines: normalised fields, GPU and CUDA among them, each an axis of its graphs."""

from bench_utils import devices
from bench_utils.measure import machine, nvml
from bench_utils.settings import Settings

NONE = "none"


def entry_of(settings: Settings) -> dict[str, str]:
    """The fields of asv and two of ours. Each is part of a series: no kernel version, no clock, no host name."""
    device = devices.place(settings).device
    index = device.index or 0
    gpu, _ = nvml.find(device.type, index)
    found = machine.fingerprint(device.type, index, gpu)
    return {
        "machine": settings.machine or found.name,
        "os": found.os,
        "arch": found.architecture,
        "cpu": found.cpu,
        "num_cpu": str(found.num_usable_cpus),
        "ram": f"{round(found.memory_bytes / 2**30)} GiB",
        "gpu": found.gpu.name if found.gpu else NONE,
        "cuda": found.gpu.cuda if found.gpu else NONE,
    }


def save(entry: dict[str, str]) -> None:
    """Into the file in the user's home where asv looks for machines; the others there stay."""
    from asv.machine import MachineCollection

    MachineCollection.save(entry["machine"], entry)
