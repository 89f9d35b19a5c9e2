"""The machine's fingerprint: hardware, versions and state; no host name, no user name, no path."""

import hashlib
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import psutil

from bench_utils.measure.nvml import Nvml
from bench_utils.measure.reading import Reading, attempt

_VERSIONED = ("torch", "transformers", "safetensors", "numpy", "asv", "pytest-benchmark", "inference-claims")


@dataclass(frozen=True)
class Gpu:
    """A GPU, known by its UUID."""

    name: str
    uuid: str
    memory_bytes: int
    driver: str
    cuda: str


@dataclass(frozen=True)
class Machine:
    """What does not change while the machine runs. Its name and id come from the hardware alone."""

    cpu: str
    architecture: str
    os: str
    num_cores: int | None  # None: the system does not say
    num_logical_cpus: int | None
    num_usable_cpus: int
    num_threads: int
    memory_bytes: int
    container: str
    gpu: Gpu | None
    versions: Mapping[str, str]

    @property
    def id(self) -> str:
        """A short hash of the hardware: two machines never share a folder or a series."""
        hardware = (
            self.cpu,
            self.architecture,
            self.os,
            self.num_usable_cpus,
            round(self.memory_bytes / 2**30),
            (self.gpu.name, self.gpu.uuid) if self.gpu else None,
        )
        return hashlib.sha256(repr(hardware).encode()).hexdigest()[:6]

    @property
    def name(self) -> str:
        """'amd-epyc-2c-23g-1a2b3c', or the GPU's name in place of the CPU's."""
        main = self.gpu.name if self.gpu else self.cpu
        slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)|processor|cpu", "", main.lower())).strip("-")
        size = round((self.gpu.memory_bytes if self.gpu else self.memory_bytes) / 2**30)
        count = "" if self.gpu else f"-{self.num_usable_cpus}c"
        return f"{slug or 'machine'}{count}-{size}g-{self.id}"


@dataclass(frozen=True)
class MachineState:
    """What may change while it runs, read before and after."""

    load_average_1min: Reading
    cpu_mhz: Reading
    gpu: Mapping[str, object] | None


def fingerprint(device_type: str = "cpu", device_index: int = 0, nvml: Nvml | None = None) -> Machine:
    """Read this machine. The GPU is described only where the run uses one, with or without NVML."""
    import torch

    from bench_utils.devices import cpu_capabilities

    return Machine(
        cpu=str(cpu_capabilities().get("cpu_name") or platform.processor() or platform.machine()),
        architecture=platform.machine(),
        os=platform.system().lower(),
        num_cores=psutil.cpu_count(logical=False),
        num_logical_cpus=psutil.cpu_count(),
        num_usable_cpus=_usable_cpus(),
        num_threads=torch.get_num_threads(),
        memory_bytes=psutil.virtual_memory().total,
        container=container_kind(),
        gpu=_gpu(device_index, nvml) if device_type == "cuda" else None,
        versions={"python": platform.python_version(), **_versions()},
    )


def state(nvml: Nvml | None = None) -> MachineState:
    """Load, clocks and, on a GPU, power, temperature and throttle reasons, now."""
    return MachineState(
        load_average_1min=attempt(lambda: psutil.getloadavg()[0], OSError, AttributeError),
        cpu_mhz=attempt(_cpu_mhz, OSError, RuntimeError, NotImplementedError),
        gpu=asdict(nvml.state()) if nvml is not None else None,
    )


def container_kind(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str:
    """'docker', 'podman', 'kubernetes', 'wsl' or 'none', as far as the system shows."""
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    return "wsl" if environ.get("WSL_DISTRO_NAME") else "none"


def _usable_cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else (os.cpu_count() or 1)


def _cpu_mhz() -> float:
    frequency = psutil.cpu_freq()
    if frequency is None:
        raise RuntimeError("the system shows no CPU frequency")
    return frequency.current


def _gpu(device_index: int, nvml: Nvml | None) -> Gpu:
    import torch

    from bench_utils.measure.nvml import cuda_uuid

    properties = torch.cuda.get_device_properties(device_index)
    return Gpu(
        name=properties.name,
        uuid=cuda_uuid(device_index),
        memory_bytes=properties.total_memory,
        driver=nvml.driver_version() if nvml is not None else "unknown (no NVML)",
        cuda=torch.version.cuda or "none",
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["implementation"] = sys.implementation.name
    return found
