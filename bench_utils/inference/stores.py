"""Where the engine keeps its sequences' caches: the interface, and contiguous rows that reserve the maximum."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from bench_utils.inference.row_cache import RowCache, StepCache


class Store(ABC):
    """Caches of sequences by key. `max_tokens` is the longest that can ever be held."""

    max_tokens: int

    @property
    @abstractmethod
    def order(self) -> Sequence[int]:
        """The keys held, in the order in which a step computes them."""

    @abstractmethod
    def admit(self, key: int, tokens: Sequence[int]) -> DynamicCache | None:
        """Make room for a sequence: the cache of a prefix that is there already, or an empty one; None: no room."""

    @abstractmethod
    def fill(self, key: int, cache: DynamicCache) -> None:
        """Keep what the prompt's pass computed."""

    @abstractmethod
    def append(self, key: int, token: int) -> bool:
        """Make room for one more token, which the next step computes; False: there is none."""

    @abstractmethod
    def step(self) -> StepCache:
        """One step over all sequences held, each at its newest token."""

    @abstractmethod
    def release(self, key: int) -> None:
        """Let a sequence go."""


class RowStore(Store):
    """A contiguous row for each sequence, as long as the longest: simple, and mostly reserved for nothing."""

    def __init__(
        self, config: Any, *, num_rows: int, max_tokens: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        if num_rows < 1 or max_tokens < 1:
            raise ValueError(f"{num_rows} rows of {max_tokens} tokens; at least one of one is needed")
        self._config = config
        self._cache = RowCache(config, num_rows=num_rows, max_tokens=max_tokens, dtype=dtype, device=device)
        self._num_rows = num_rows
        self.max_tokens = max_tokens
        self._keys: list[int] = []  # by row
        self._lengths: dict[int, int] = {}

    @property
    def order(self) -> Sequence[int]:
        """By row: the rows in use are the first ones."""
        return self._keys

    def admit(self, key: int, tokens: Sequence[int]) -> DynamicCache | None:
        """A row, if one is left; it holds nothing yet."""
        if len(self._keys) == self._num_rows:
            return None
        self._keys.append(key)
        self._lengths[key] = len(tokens)
        return DynamicCache(config=self._config)

    def fill(self, key: int, cache: DynamicCache) -> None:
        """Copy it into the row."""
        self._cache.write(self._keys.index(key), cache)

    def append(self, key: int, token: int) -> bool:  # noqa: ARG002 - a row does not care which
        """One more slot of the row, which was reserved from the start."""
        self._lengths[key] += 1
        return True

    def step(self) -> StepCache:
        """Every row in place."""
        return self._cache.step([self._lengths[key] - 1 for key in self._keys])

    def release(self, key: int) -> None:
        """Free the row; the last row moves into it."""
        row, last = self._keys.index(key), len(self._keys) - 1
        if row != last:
            self._cache.move(last, row)
            self._keys[row] = self._keys[last]
        self._keys.pop()
        del self._lengths[key]
