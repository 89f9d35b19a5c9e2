"""Which device and dtype a run uses, and why."""

from dataclasses import dataclass

import psutil
import torch

from bench_utils.settings import ChoiceError, Settings

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class ShortOfMemoryError(MemoryError):
    """The machine has too little free memory for what is asked: nothing was allocated."""


@dataclass(frozen=True)
class Placement:
    """A device and a dtype, with the reason where `auto` chose."""

    device: torch.device
    dtype: torch.dtype
    why: str

    @property
    def dtype_name(self) -> str:
        """'bfloat16' and so on."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def half_name(self) -> str:
        """The run's own dtype where that is a half, else bfloat16."""
        return self.dtype_name if self.dtype_name in HALVES else next(iter(HALVES))


def place(settings: Settings) -> Placement:
    """Resolve `auto` to what the device is good at.

    Raises:
        ChoiceError: the device asked for is absent; says what torch sees.
    """
    device = device_named(settings.device)
    if settings.dtype != "auto":
        return Placement(device, getattr(torch, settings.dtype), "as asked")
    dtype, why = _good_dtype(device)
    return Placement(device, dtype, f"auto: {why}")


def what_torch_sees() -> str:
    """One line on the accelerators of this torch build."""
    cuda = f"{torch.cuda.device_count()} CUDA device(s)" if torch.cuda.is_available() else "no CUDA device"
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    mps = "MPS" if torch.backends.mps.is_available() else "no MPS"
    return f"torch {torch.__version__} ({built}) sees {cuda}, {mps}"


def free_bytes(device: torch.device) -> int:
    """Memory that is free for tensors on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return int(psutil.virtual_memory().available)


def demand_memory(num_bytes: int, device: torch.device, what: str) -> None:
    """Refuse what cannot fit: on a CPU the system would kill the process instead of raising.

    Raises:
        ShortOfMemoryError: with what is needed and what is free. Tensors on 'meta' need none.
    """
    if device.type != "meta" and num_bytes > (free := free_bytes(device)):
        raise ShortOfMemoryError(f"{what} needs {num_bytes:,} B and {free:,} B are free on {device}")


def device_named(name: str) -> torch.device:
    """The device that a name means here; 'auto' prefers a GPU.

    Raises:
        ChoiceError: it is absent; says what torch sees.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = torch.device(name)
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }[device.type]
    if not available:
        raise ChoiceError(f"device {name!r} was asked for, but {what_torch_sees()}; use --claims-device=cpu")
    return torch.device("cuda", 0) if name == "cuda" else device


def _good_dtype(device: torch.device) -> tuple[torch.dtype, str]:
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) >= (8, 0):
            return torch.bfloat16, "this GPU multiplies bfloat16 natively"
        return torch.float16, "this GPU is older than native bfloat16"
    if device.type == "mps":
        return torch.float16, "MPS is at its best in float16"
    if cpu_has_native_bfloat16():
        return torch.bfloat16, "this CPU multiplies bfloat16 natively"
    return torch.float32, "this CPU has no native half precision"


def cpu_has_native_bfloat16() -> bool:
    """Whether the CPU has bfloat16 dot products (AVX512-BF16 or AMX)."""
    capabilities = cpu_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def cpu_capabilities() -> dict[str, object]:
    """Torch's reading of the CPU; {} where this torch has none."""
    read = getattr(torch.cpu, "get_capabilities", None)
    return dict(read()) if read else {}
