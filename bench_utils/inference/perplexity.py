"""Perplexity by a stated protocol: the loss of every token that is scored, kept one by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bench_utils.inference.decode import full_pass

# Rows of logits that are widened at a time: no more of them than that is ever held.
_ROWS = 64


class NotFiniteError(ValueError):
    """Logits that are no numbers; the message says in which layer that began."""


@dataclass(frozen=True)
class Protocol:
    """How a text is scored: in windows of `context` tokens, each `stride` tokens after the one before."""

    num_tokens: int = 2048
    context: int = 512
    stride: int = 512

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= self.context or self.context < 2:
            raise ValueError(
                f"a stride of {self.stride} in a context of {self.context} scores nothing, or skips text"
            )
        if self.num_tokens < self.context:
            raise ValueError(f"{self.num_tokens} tokens do not fill a window of {self.context}")

    def windows(self) -> Iterator[tuple[int, int, int]]:
        """(first token, token after the last, first token that is scored) of each window.

        A window scores what the one before has not; its own first token has nothing before it and is never scored.
        """
        scored_to = 0
        for start in range(0, self.num_tokens, self.stride):
            end = min(start + self.context, self.num_tokens)
            yield start, end, max(start + 1, scored_to)
            scored_to = end
            if end == self.num_tokens:
                return

    @property
    def num_scored(self) -> int:
        """Tokens that get a loss."""
        return sum(end - first for _, end, first in self.windows())

    def __str__(self) -> str:
        return (
            f"{self.num_tokens:,} tokens in windows of {self.context}, stride {self.stride}, nothing prepended, a "
            f"window's first token not scored: {self.num_scored:,} scored"
        )


@torch.inference_mode()
def token_losses(model: Any, ids: torch.Tensor, protocol: Protocol) -> torch.Tensor:
    """-ln p of every scored token of a text (1, T): (num_scored,) in float64. Perplexity is exp of their mean.

    Each is made in float32 at least, which has it to about 1e-5.

    Raises:
        NotFiniteError: naming the layer where numbers ended.
    """
    losses = []
    for start, end, first in protocol.windows():
        window = ids[:, start:end]
        logits = full_pass(model, window)[0]  # (T, V)
        for row in range(first - start, end - start, _ROWS):
            targets = window[0, row : row + _ROWS]
            before = logits[row - 1 : row - 1 + len(targets)]
            before = before.to(torch.promote_types(before.dtype, torch.float32))
            losses.append((before.logsumexp(1) - before.gather(1, targets[:, None])[:, 0]).double())
            if not bool(losses[-1].isfinite().all()):
                raise NotFiniteError(f"logits are not finite from {first_not_finite(model, window)} on")
    return torch.cat(losses).cpu()


@torch.inference_mode()
def first_not_finite(model: Any, ids: torch.Tensor) -> str:
    """The first layer of a decoder whose output for (1, T) is not finite, as 'layer 3 of 30'."""
    layers = model.get_decoder().layers
    found: list[int] = []

    def look(index: int) -> Any:
        def hook(_layer: Any, _arguments: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            if not bool(hidden.isfinite().all()):
                found.append(index)

        return hook

    hooks = [layer.register_forward_hook(look(index)) for index, layer in enumerate(layers, start=1)]
    try:
        full_pass(model, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return f"layer {found[0]} of {len(layers)}" if found else "the head"
