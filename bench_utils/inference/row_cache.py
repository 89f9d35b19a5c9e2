"""A batch of sequences of different lengths: their cache in contiguous rows, and one decode step over all of them.

Each row reserves its longest length at once, and a step writes in place: what a server did before paging.
"""

from abc import abstractmethod
from typing import Any

import torch
from transformers import Cache, DynamicCache

from bench_utils.devices import demand_memory
from bench_utils.inference.kv_cache import bytes_per_token
from bench_utils.models.facts import cache_shape


class StepCache(Cache):
    """What one decode step reads and writes: n sequences, each at a position of its own.

    positions (n,) say where each sequence's new token goes; it attends to `num_slots` cached positions at most.
    """

    def __init__(self, positions: torch.Tensor, num_slots: int) -> None:
        super().__init__(layers=[])
        self.positions = positions
        self.num_slots = num_slots

    @abstractmethod
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the new keys and values (n, K, 1, D) of a layer; all its (n, K, num_slots, D)."""


def ragged_step(model: Any, tokens: torch.Tensor, cache: StepCache) -> torch.Tensor:
    """One new token (n,) for each of n sequences: the logits (n, V). Nothing advances: a step can be repeated."""
    positions = cache.positions[:, None]  # (n, 1)
    dtype = next(model.parameters()).dtype
    unwritten = torch.arange(cache.num_slots, device=tokens.device) > positions  # (n, T)
    # Added to the scores, which eager and fused attention both understand.
    mask = torch.zeros(unwritten.shape, dtype=dtype, device=tokens.device)
    mask = mask.masked_fill_(unwritten, torch.finfo(dtype).min)[:, None, None]  # (n, 1, 1, T)
    output = model(tokens[:, None], position_ids=positions, attention_mask=mask, cache=cache, use_cache=True)
    logits: torch.Tensor = output.logits[:, -1]
    return logits


class RowCache:
    """R rows of contiguous keys and values, each (K, max_tokens, D) in every layer."""

    def __init__(
        self, config: Any, *, num_rows: int, max_tokens: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        shape = cache_shape(config)
        self.max_tokens = max_tokens
        num_bytes = bytes_per_token(shape, dtype.itemsize) * num_rows * max_tokens
        demand_memory(num_bytes, torch.device(device), f"a cache of {num_rows} rows of {max_tokens:,} tokens")
        size = (shape.num_layers, num_rows, shape.num_kv_heads, max_tokens, shape.head_dim)
        self.keys = torch.zeros(size, dtype=dtype, device=device)  # (L, R, K, T, D)
        self.values = torch.zeros(size, dtype=dtype, device=device)

    def write(self, row: int, cache: DynamicCache, source_row: int = 0) -> None:
        """Copy a sequence that was prefilled elsewhere into a row."""
        layers: list[Any] = list(cache.layers)
        for layer, own in enumerate(layers):
            num_tokens = own.keys.shape[2]
            self.keys[layer, row, :, :num_tokens] = own.keys[source_row]
            self.values[layer, row, :, :num_tokens] = own.values[source_row]

    def move(self, source: int, target: int) -> None:
        """Copy a row onto another, so that the rows in use stay the first ones."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def step(self, lengths: list[int]) -> "RowStep":
        """The step of the first rows, which hold `lengths` tokens."""
        assert max(lengths) < self.max_tokens, f"a row of {self.max_tokens} tokens is full"
        return RowStep(self, lengths)


class RowStep(StepCache):
    """One step over the first n rows, written in place and read as they lie: nothing is copied."""

    def __init__(self, cache: RowCache, lengths: list[int]) -> None:
        device = cache.keys.device
        super().__init__(torch.tensor(lengths, device=device), max(lengths) + 1)
        self._cache = cache
        self._rows = torch.arange(len(lengths), device=device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the new keys and values (n, K, 1, D) of a layer; views of all its (n, K, num_slots, D)."""
        keys, values = self._cache.keys[layer_idx], self._cache.values[layer_idx]  # (R, K, T, D)
        keys[self._rows, :, self.positions] = key_states[:, :, 0]
        values[self._rows, :, self.positions] = value_states[:, :, 0]
        n = len(self._rows)
        return keys[:n, :, : self.num_slots], values[:n, :, : self.num_slots]
