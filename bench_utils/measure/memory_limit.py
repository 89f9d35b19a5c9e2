"""A limit on this process's memory that the system itself keeps, and the least one under which something runs."""

import errno
import sys
from collections.abc import Callable
from typing import Protocol

from bench_utils.devices import ShortOfMemoryError
from bench_utils.measure.memory import is_out_of_memory
from bench_utils.settings import NotApplicableError

# glibc's, for a process that is to be limited: large tensors are mapped one by one and given back when freed,
# instead of living on in the heap, where a limit cannot see them go. One arena: no thread keeps its own reserve.
# On CUDA torch's allocator takes memory by its defaults, whatever was set for other programs.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "PYTORCH_ALLOC_CONF": "",
}
_PROBE_BYTES = 256 * 2**20


class MemoryLimit(Protocol):
    """What the memory of this process may come to."""

    what: str
    # What one process may take more than another that does the same.
    spread_bytes: int

    def set(self, num_bytes: int) -> None:
        """Refuse every allocation beyond it."""

    def lift(self) -> None:
        """No limit of ours."""


class DataLimit:
    """Linux: RLIMIT_DATA, over all private writable memory, of tensors, the interpreter and its libraries."""

    what = "RLIMIT_DATA"
    # Python and the C library take memory in pieces of a MiB: twelve processes differed by 1.4 MiB.
    spread_bytes = 4 * 2**20

    def __init__(self) -> None:
        import resource

        self._resource = resource
        self._given = resource.getrlimit(resource.RLIMIT_DATA)

    def set(self, num_bytes: int) -> None:
        """Of the soft limit alone, which can be lifted again; never beyond the hard one."""
        hard = self._given[1]
        soft = num_bytes if hard == self._resource.RLIM_INFINITY else min(num_bytes, hard)
        self._resource.setrlimit(self._resource.RLIMIT_DATA, (soft, hard))

    def lift(self) -> None:
        """Back to the limit that the process was given."""
        self._resource.setrlimit(self._resource.RLIMIT_DATA, self._given)


class CudaLimit:
    """The fraction of the device that torch's allocator may hold. The driver's context lies outside of it."""

    what = "torch's allocator on CUDA"
    # It reserves 20 MiB at once for what is smaller than 10, and a little more than one such piece may be begun.
    spread_bytes = 40 * 2**20

    def __init__(self, index: int) -> None:
        import torch

        self._torch, self._index = torch, index
        self._total = torch.cuda.get_device_properties(index).total_memory

    def set(self, num_bytes: int) -> None:
        """In bytes of the device."""
        self._torch.cuda.empty_cache()
        self._torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / self._total), self._index)

    def lift(self) -> None:
        """The whole device."""
        self.set(self._total)


def limit_for(device_type: str, index: int = 0) -> MemoryLimit:
    """The limit that holds for tensors on a device.

    Raises:
        NotApplicableError: there is none on this system, or the system does not keep it.
    """
    if device_type == "cuda":
        return CudaLimit(index)
    if device_type != "cpu":
        raise NotApplicableError(f"no limit on memory is known for {device_type}")
    if sys.platform != "linux":
        raise NotApplicableError(f"{sys.platform} keeps no limit on a process's private memory")
    limit = DataLimit()
    # Not zero, which Linux takes for no limit.
    if runs_within(limit, 1, lambda: bytearray(_PROBE_BYTES)):
        raise NotApplicableError("this kernel does not keep RLIMIT_DATA")
    return limit


def runs_within(limit: MemoryLimit, num_bytes: int, run: Callable[[], object]) -> bool:
    """Whether `run()` gets all memory that it asks for; any other failure is its own.

    Raises:
        ShortOfMemoryError: the machine, and not the limit, has too little.
    """
    try:
        limit.set(num_bytes)
        run()
    except ShortOfMemoryError:
        raise
    except Exception as error:
        if not _is_refusal(error):
            raise
        return False
    finally:
        limit.lift()
    return True


def _is_refusal(error: Exception) -> bool:
    """Whether an error is what becomes of a refused allocation, of a tensor or of a library's own."""
    if is_out_of_memory(error) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    words = ("bad_alloc", "could not create a primitive", "could not create a memory", "can't start new thread")
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def least(works: Callable[[int], bool], low: int, high: int, step: int) -> int:
    """The least number above `low`, to within `step`, that works: by bisection, every larger one working too.

    Raises:
        ValueError: `high` does not work.
    """
    if not works(high):
        raise ValueError(f"{high:,} is not enough")
    while high - low > step:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
    return high
