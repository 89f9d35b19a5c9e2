"""The machine's own limits, measured: read and copy bandwidth by working set, GEMM peak by dtype."""

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench_utils.cache import cache_dir, write_json
from bench_utils.measure.clock import Clock, clock_for
from bench_utils.measure.machine import Machine

# Powers of two, in bytes: from inside the caches to well outside them.
CPU_WORKING_SETS = (2**20, 2**22, 2**24, 2**26, 2**28)
GPU_WORKING_SETS = (2**22, 2**24, 2**26, 2**28, 2**30)
PEAK_DTYPES = ("float64", "float32", "bfloat16", "float16")
_REPEATS = 12
_GEMM_SIZES = (512, 1024, 2048, 4096, 8192)
_GEMM_ROWS = 64
_GEMM_TIME_S = 0.03


@dataclass(frozen=True)
class Roofline:
    """Limits in B/s by working set in bytes, and in FLOP/s by dtype. Best seen, never averages."""

    read_bytes_per_s: Mapping[int, float] = field(default_factory=dict)
    copy_bytes_per_s: Mapping[int, float] = field(default_factory=dict)
    peak_flop_per_s: Mapping[str, float] = field(default_factory=dict)

    def bandwidth(self, working_set_bytes: int) -> float | None:
        """The most seen from the next smaller measured size on; None below the smallest (inside the caches)."""
        both = [*self.read_bytes_per_s.items(), *self.copy_bytes_per_s.items()]
        reached = [size for size, _ in both if size <= working_set_bytes]
        return max(limit for size, limit in both if size >= max(reached)) if reached else None

    @property
    def memory_bandwidth(self) -> float | None:
        """The bandwidth of the largest working set: memory, not cache."""
        return self.bandwidth(max(self.read_bytes_per_s)) if self.read_bytes_per_s else None

    def peak(self, dtype: str) -> float | None:
        """FLOP/s of the fastest matrix product in a dtype."""
        return self.peak_flop_per_s.get(dtype)

    def ridge_flop_per_byte(self, dtype: str) -> float | None:
        """The arithmetic intensity at which memory stops being the limit."""
        peak, bandwidth = self.peak(dtype), self.memory_bandwidth
        return peak / bandwidth if peak and bandwidth else None

    def merged(self, other: "Roofline") -> "Roofline":
        """The best of both: a limit is the most that was ever seen."""

        def best(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
            return {key: max(a.get(key, 0.0), b.get(key, 0.0)) for key in sorted({*a, *b})}

        peaks = {
            dtype: max(self.peak_flop_per_s.get(dtype, 0.0), other.peak_flop_per_s.get(dtype, 0.0))
            for dtype in sorted({*self.peak_flop_per_s, *other.peak_flop_per_s})
        }
        return Roofline(
            best(self.read_bytes_per_s, other.read_bytes_per_s),
            best(self.copy_bytes_per_s, other.copy_bytes_per_s),
            peaks,
        )


def measure(device_type: str, report: Callable[[str], None] = lambda _step: None) -> Roofline:
    """Measure the limits of a device; seconds on a CPU. `report` is told each step."""
    import torch

    device = torch.device(device_type)
    clock = clock_for(device.type)
    sizes = GPU_WORKING_SETS if device.type == "cuda" else CPU_WORKING_SETS
    reads, copies, peaks = {}, {}, {}
    for size in sizes:
        report(f"bandwidth over {size // 2**20} MiB")
        reads[size], copies[size] = _bandwidths(size, device, clock)
    for name in PEAK_DTYPES:
        report(f"matrix products in {name}")
        if (flops := _peak(getattr(torch, name), device, clock)) is not None:
            peaks[name] = flops
    return Roofline(reads, copies, peaks)


def _best_s(run: Callable[[], object], clock: Clock, repeats: int = _REPEATS) -> float:
    """The shortest of several runs in seconds: a limit is what the machine does undisturbed."""
    run()
    pending = []
    for _ in range(repeats):
        mark = clock.begin()
        run()
        pending.append(clock.end(mark))
    return min(clock.read(pending))


def _bandwidths(size: int, device: "object", clock: Clock) -> tuple[float, float]:
    """(read, copy) in B/s over `size` bytes; a copy reads half of them and writes the other half."""
    import torch

    columns = 2048
    source = torch.ones(size // 4 // columns, columns, device=device)  # type: ignore[call-overload]
    vector = torch.ones(columns, device=device)  # type: ignore[call-overload]
    # A matrix-vector product is decoding's own way of reading; a sum reads with no product at all.
    read_s = min(_best_s(lambda: torch.mv(source, vector), clock), _best_s(source.sum, clock))
    half = source.view(-1)[: source.numel() // 2]
    target = torch.empty_like(half)
    copy_s = _best_s(lambda: target.copy_(half), clock)
    return size / read_s, size / copy_s


def _peak(dtype: Any, device: Any, clock: Clock) -> float | None:
    """FLOP/s of the best product in a dtype, of square matrices or of a batch of rows; None if unsupported.

    The latter, laid out as a model has them, are the faster ones where a library has no fast kernel for the former:
    float16 on many CPUs.
    """
    import torch

    best = 0.0
    for num_rows in (None, _GEMM_ROWS):
        for n in _GEMM_SIZES:
            try:
                a = torch.ones(n, n, dtype=dtype, device=device)
                product = partial(torch.nn.functional.linear, a[:num_rows], a) if num_rows else partial(a.matmul, a)
                seconds = _best_s(product, clock, repeats=4)
            except (RuntimeError, TypeError):  # the dtype or the memory is missing on this device
                break
            best = max(best, 2 * (num_rows or n) * n**2 / seconds)
            if seconds > _GEMM_TIME_S:
                break
    return best or None


def load_or_measure(
    machine: Machine, device_type: str, report: Callable[[str], None] = lambda _step: None
) -> Roofline:
    """The cached limits of this machine and these versions, measured where there are none."""
    if (cached := read_cache(machine, device_type)) is not None:
        return cached
    return measure_again(machine, device_type, report)


def measure_again(
    machine: Machine, device_type: str, report: Callable[[str], None] = lambda _step: None
) -> Roofline:
    """Measure now, keep the best of it and the cache, and cache that."""
    fresh = measure(device_type, report)
    cached = read_cache(machine, device_type)
    best = fresh.merged(cached) if cached else fresh
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a measurement next time, no more
        write_json(cache_path(machine, device_type), {"measured_at_s": int(time.time()), **asdict(best)})
    return best


def _cache_key(machine: Machine, device_type: str) -> str:
    """What the limits depend on: hardware, threads, and the versions of the kernels."""
    parts = (machine.id, device_type, machine.num_threads, machine.versions.get("torch"))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def cache_path(machine: Machine, device_type: str) -> Path:
    """Where the limits of this machine are kept."""
    return cache_dir() / "roofline" / f"{_cache_key(machine, device_type)}.json"


def read_cache(machine: Machine, device_type: str) -> Roofline | None:
    """The cached limits, or None where there are none that can be read."""
    try:
        return from_json(json.loads(cache_path(machine, device_type).read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def from_json(document: Mapping[str, Mapping[str, float]]) -> Roofline:
    """A roofline from its JSON form, whose keys are strings."""
    roofline = Roofline(
        {int(size): float(limit) for size, limit in document["read_bytes_per_s"].items()},
        {int(size): float(limit) for size, limit in document["copy_bytes_per_s"].items()},
        {str(dtype): float(limit) for dtype, limit in document["peak_flop_per_s"].items()},
    )
    limits = [*roofline.read_bytes_per_s.values(), *roofline.peak_flop_per_s.values()]
    if not limits or not all(math.isfinite(limit) and limit > 0 for limit in limits):
        raise ValueError("a roofline needs positive limits")
    return roofline
