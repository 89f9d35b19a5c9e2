"""Memory of one run, by named source, side by side: no two of them measure the same thing."""

import os
from collections.abc import Callable, Mapping

from bench_utils.measure.nvml import NO_GPU, Nvml
from bench_utils.measure.reading import Reading, missing
from bench_utils.measure.rss_watch import RssWatch

SOURCES = {
    "allocator_peak_bytes": "torch's allocator, most allocated at once",
    "allocator_reserved_bytes": "torch's allocator, most held from the device",
    "tensor_peak_bytes": "exact bytes of the run's own tensors, most alive at once (not on CUDA)",
    "nvml_process_bytes": "NVML, this process, after the run",
    "nvml_device_bytes": "NVML, the whole device, after the run",
    "rss_before_bytes": "resident memory before the run",
    "rss_peak_bytes": "most resident memory during the run, sampled by another process",
}


class MemoryProbe:
    """Runs something once, untimed, and reads every source."""

    def __init__(self, device_type: str, rss: RssWatch, nvml: Nvml | None, nvml_reason: str = NO_GPU) -> None:
        self._device_type = device_type
        self._rss = rss
        self._nvml = nvml
        self._nvml_reason = nvml_reason

    def measure(
        self, run: Callable[[], object], restore: Callable[[], None] = lambda: None
    ) -> Mapping[str, Reading]:
        """Readings by source, in the order of SOURCES; `restore` comes before each of the two runs."""
        restore()
        self._reset_allocator()
        before = self._rss.begin()
        try:
            result = run()
        finally:
            most = self._rss.end()
        readings = {
            **self._allocator(),
            "tensor_peak_bytes": self._tensors(run, restore),
            **self._device(),
            "rss_before_bytes": Reading(before),
            "rss_peak_bytes": Reading(most),
        }
        del result
        return readings

    def _reset_allocator(self) -> None:
        if self._device_type == "cuda":
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def _allocator(self) -> dict[str, Reading]:
        import torch

        if self._device_type == "cuda":
            torch.cuda.synchronize()
            return {
                "allocator_peak_bytes": Reading(torch.cuda.max_memory_allocated()),
                "allocator_reserved_bytes": Reading(torch.cuda.max_memory_reserved()),
            }
        if self._device_type == "mps":
            return {
                "allocator_peak_bytes": missing("MPS reports no peak"),
                "allocator_reserved_bytes": Reading(torch.mps.driver_allocated_memory()),
            }
        reason = "torch keeps no allocator statistics for the CPU"
        return {"allocator_peak_bytes": missing(reason), "allocator_reserved_bytes": missing(reason)}

    def _tensors(self, run: Callable[[], object], restore: Callable[[], None]) -> Reading:
        if self._device_type == "cuda":
            return missing("on CUDA the allocator's own peak is read")
        from bench_utils.measure.tensor_tracker import peak_tensor_bytes

        restore()
        return Reading(peak_tensor_bytes(run))

    def _device(self) -> dict[str, Reading]:
        if self._nvml is None:
            reason = self._nvml_reason
            return {"nvml_process_bytes": missing(reason), "nvml_device_bytes": missing(reason)}
        return {
            "nvml_process_bytes": self._nvml.process_bytes(os.getpid()),
            "nvml_device_bytes": self._nvml.device_bytes(),
        }


def cuda_peak_bytes(run: Callable[[], object]) -> int:
    """Peak of torch's CUDA allocator during `run()`, above what was resident before."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    resident = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - resident
    del result
    return int(peak)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on any device."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower()
        for words in ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    )
