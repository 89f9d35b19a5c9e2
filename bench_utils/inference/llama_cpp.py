"""llama.cpp on the same GGUF file, as a peer: another implementation of the same step, held beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench_utils.settings import NotApplicableError

MISSING = 'llama-cpp-python is not installed: pip install "inference-claims[peers]"'


def is_installed() -> bool:
    """Whether the extra is there, without importing it."""
    from importlib.util import find_spec

    return find_spec("llama_cpp") is not None


def missing(gguf: Path | None) -> str:
    """Why it cannot stand beside a model that comes from this file ('': it can); without importing it."""
    if gguf is None:
        return "llama.cpp reads GGUF files, and this model comes from none"
    return "" if is_installed() else MISSING


def lacks(device: str) -> str:
    """Why it cannot run beside this device ('': it can). Imports it."""
    import llama_cpp

    if device == "cpu" or llama_cpp.llama_supports_gpu_offload():
        return ""
    return f"this build of llama.cpp runs on the CPU alone, and the model is on {device}"


class LlamaCpp:
    """One sequence in llama.cpp, greedy; as many threads as torch has.

    Raises:
        NotApplicableError: it is not installed, or cannot read the file.
    """

    def __init__(
        self, gguf: Path, *, max_tokens: int, num_threads: int, on_gpu: bool = False, all_logits: bool = False
    ) -> None:
        try:
            import llama_cpp
        except ImportError as error:
            raise NotApplicableError(MISSING) from error
        self._library = llama_cpp
        try:
            self._model: Any = llama_cpp.Llama(
                str(gguf),
                n_ctx=max_tokens,
                n_threads=num_threads,
                n_threads_batch=num_threads,
                n_gpu_layers=-1 if on_gpu else 0,
                logits_all=all_logits,
                verbose=False,
            )
        except (ValueError, RuntimeError, OSError) as error:
            raise NotApplicableError(f"llama.cpp cannot load the file: {error}") from error

    def fill(self, tokens: Sequence[int]) -> None:
        """Forget everything, and take a prompt into the cache."""
        self._model.reset()
        self._model.eval(list(tokens))

    def greedy(self, token: int, num_tokens: int) -> list[int]:
        """Feed a token, choose the next, and so on; the cache then stands where it stood before."""
        before, tokens = self._model.n_tokens, []
        for _ in range(num_tokens):
            self._model.eval([token])
            token = int(self.last_logits().argmax())
            tokens.append(token)
        self._model.n_tokens = before  # what is beyond is dropped by the next eval
        return tokens

    def all_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """The logits (T, V) of a text from its start; wants `all_logits` when it is made."""
        self.fill(tokens)
        return torch.from_numpy(self._model.scores[: len(tokens)].copy())

    def last_logits(self) -> Any:
        """The logits (V,) after the last token that was fed, as numpy sees llama.cpp's own memory."""
        import numpy

        logits = self._library.llama_get_logits_ith(self._model.ctx, -1)
        return numpy.ctypeslib.as_array(logits, shape=(self._model.n_vocab(),))
