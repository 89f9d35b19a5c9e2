"""A step captured as a CUDA graph: replayed with one launch, so that launches no longer bound a small model."""

from collections.abc import Callable
from typing import Any

import torch

_NUM_WARM = 3  # as torch asks for: libraries set themselves up outside the graph


class CapturedStep:
    """A replay of `run`: same tensors in, its output tensor out, overwritten by every replay.

    `run` must read and write tensors that stay where they are, and decide nothing on the host. The graph knows only
    their addresses: `run` is kept, and with it all that it refers to.
    Source: torch's notes on CUDA graphs, https://docs.pytorch.org/docs/stable/notes/cuda.html.
    """

    def __init__(self, run: Callable[[], torch.Tensor], cuda: Any = torch.cuda) -> None:
        self._run = run
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(_NUM_WARM):
                run()
        cuda.current_stream().wait_stream(stream)
        self._graph = cuda.CUDAGraph()
        with cuda.graph(self._graph):
            self._output = run()

    def __call__(self) -> torch.Tensor:
        """Replay it; one launch, no Python of the model's."""
        self._graph.replay()
        return self._output
