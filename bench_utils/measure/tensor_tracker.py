"""Exact live tensor bytes, counted at torch's dispatch: the CPU's stand-in for an allocator's peak."""

import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class TensorTracker(TorchDispatchMode):
    """Counts the bytes of every storage created while it is active, and their peak.

    A view adds nothing; a storage counts until its last view dies; storages that existed before (weights,
    inputs) count nothing. What a kernel allocates and frees inside one operator is invisible here, so the
    figure is exact for tensors and a lower bound for scratch memory.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self._met: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def __enter__(self) -> "TensorTracker":
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((*args, *kwargs.values())):
            self._meet(tensor, is_new=False)
        result = func(*args, **kwargs)
        for tensor in _tensors((result,)):
            self._meet(tensor, is_new=True)
        return result

    def _meet(self, tensor: torch.Tensor, *, is_new: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._met:
            return
        num_bytes = storage.nbytes() if is_new else 0
        self._met[key] = num_bytes, weakref.ref(storage, lambda _dead: self._forget(key))
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int) -> None:
        num_bytes, _ = self._met.pop(key)
        self.live_bytes -= num_bytes


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    # Operators take and return tensors, or lists of them: no deeper tree is worth walking.
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (element for element in value if isinstance(element, torch.Tensor))


def peak_tensor_bytes(run: Any) -> int:
    """Peak bytes of the tensors that `run()` creates, its result included."""
    with TensorTracker() as tracker:
        result = run()
    peak = tracker.peak_bytes
    del result
    return peak
