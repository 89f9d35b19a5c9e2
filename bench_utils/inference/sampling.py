"""Choosing the next token: greedy, or sampled from a tempered distribution with a seed of the request's own."""

import math
from dataclasses import dataclass

import torch

# Below it logits divided by the temperature are no numbers any more.
_COLDEST = 1e-3


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 is greedy; `top_k` 0 keeps the whole vocabulary."""

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not _COLDEST <= self.temperature < math.inf:
            raise ValueError(f"temperature {self.temperature} must be 0, or from {_COLDEST} on")
        if self.top_k < 0:
            raise ValueError(f"top_k {self.top_k} must not be negative")

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature == 0


GREEDY = Sampling()


def probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution (V,) that is really sampled, in float64: softmax(logits / T) over the k largest."""
    scaled = logits.double() / sampling.temperature
    if 0 < sampling.top_k < scaled.numel():
        largest = scaled.topk(sampling.top_k)  # exactly k, also where logits tie
        scaled = torch.full_like(scaled, float("-inf")).scatter(0, largest.indices, largest.values)
    return scaled.softmax(-1)


class Chooser:
    """Draws one request's tokens. Its generator is its own, so that its neighbours do not change them."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(sampling.seed)

    def choose(self, logits: torch.Tensor) -> int:
        """A token for logits (V,)."""
        if self._sampling.is_greedy:
            return int(logits.argmax())
        drawn = torch.multinomial(probabilities(logits.cpu(), self._sampling), 1, generator=self._generator)
        return int(drawn)
