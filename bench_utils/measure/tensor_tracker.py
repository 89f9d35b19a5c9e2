"""Exact live tensor bytes, counted at torch's dispatch: the CPU's stand-in for an allocator's peak."""

import weakref
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorTracker(TorchDispatchMode):
    """Counts the bytes of every storage created while it is active, and their peak.

    A view adds nothing; a storage counts until its last view dies; storages that existed before (weights,
    inputs) count nothing. What a kernel allocates and frees inside one operator is invisible here, so the
    figure is exact for tensors and a lower bound for scratch memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._counted: dict[int, int] = {}

    def __enter__(self) -> "TensorTracker":
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self._meet(tensor, is_new=False)
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._meet(tensor, is_new=True)
        return result

    def _meet(self, tensor: torch.Tensor, *, is_new: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._counted:
            self._counted[key] = 0
            weakref.finalize(storage, self._forget, key)
            if not is_new:
                return
            self._counted[key] = storage.nbytes()
            self.live_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int) -> None:
        self.live_bytes -= self._counted.pop(key, 0)


def peak_tensor_bytes(run: Any) -> int:
    """Peak bytes of the tensors that `run()` creates, its result included."""
    with TensorTracker() as tracker:
        result = run()
    peak = tracker.peak_bytes
    del result
    return peak
