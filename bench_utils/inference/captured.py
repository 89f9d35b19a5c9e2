"""A step captured as a CUDA graph: replayed with one launch, so that launches no longer bound a small model."""

from collections.abc import Callable
from typing import Any

import torch

_NUM_WARM = 3  # as torch asks for: libraries set themselves up outside the graph


def capture(run: Callable[[], torch.Tensor], cuda: Any = torch.cuda) -> Callable[[], torch.Tensor]:
    """A replay of `run`: same tensors in, its output tensor out, overwritten by every replay.

    `run` must read and write tensors that stay where they are, and decide nothing on the host.
    Source: torch's notes on CUDA graphs, https://docs.pytorch.org/docs/stable/notes/cuda.html.
    """
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        for _ in range(_NUM_WARM):
            run()
    cuda.current_stream().wait_stream(stream)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        output = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    return replay
