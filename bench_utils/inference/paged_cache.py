"""A paged cache: keys and values in fixed-size blocks anywhere, and decoding through block tables.

This is the reference form: a step gathers each sequence's blocks into a contiguous copy, which a paged attention
kernel would read in place. What it stores, shares and wastes is the same.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from bench_utils.devices import demand_memory
from bench_utils.inference.blocks import BlockManager
from bench_utils.inference.kv_cache import bytes_per_token
from bench_utils.inference.row_cache import StepCache
from bench_utils.inference.stores import Store
from bench_utils.models.facts import cache_shape


class PagedStore(Store):
    """Blocks of (b, K, D) keys and values in every layer, behind a block manager."""

    def __init__(
        self, config: Any, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.manager = BlockManager(num_blocks, block_size)
        self.max_tokens = num_blocks * block_size
        self._config = config
        shape = cache_shape(config)
        num_bytes = bytes_per_token(shape, dtype.itemsize) * self.max_tokens
        demand_memory(num_bytes, torch.device(device), f"a cache of {num_blocks} blocks of {block_size} tokens")
        size = (shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.keys = torch.zeros(size, dtype=dtype, device=device)  # (L, N, b, K, D)
        self.values = torch.zeros(size, dtype=dtype, device=device)

    @property
    def order(self) -> Sequence[int]:
        """As they were admitted."""
        return self.manager.held

    def admit(self, key: int, tokens: Sequence[int]) -> DynamicCache | None:
        """A block table, if the tokens and one more fit; the cache of the prefix that others left or hold.

        Raises:
            ValueError: more tokens than all blocks hold.
        """
        if len(tokens) > self.max_tokens:
            raise ValueError(f"{len(tokens)} tokens, and all blocks together hold {self.max_tokens}")
        spare = min(1, self.max_tokens - len(tokens))  # the token that its prompt's pass gives
        num_shared = self.manager.admit(key, tokens, spare_tokens=spare)
        return None if num_shared is None else self.read(key, num_shared)

    def read(self, key: int, num_tokens: int) -> DynamicCache:
        """The first tokens of a sequence as a contiguous cache of one row."""
        cache = DynamicCache(config=self._config)
        if num_tokens:
            blocks, offsets = self._slots(key, 0, num_tokens)
            for layer, pools in enumerate(zip(self.keys, self.values, strict=True)):
                keys, values = (pool[blocks, offsets].transpose(0, 1)[None] for pool in pools)  # (1, K, T, D)
                cache.update(keys, values, layer)
        return cache

    def fill(self, key: int, cache: DynamicCache) -> None:
        """Write what the prompt's pass computed into the sequence's own blocks, and publish the full ones."""
        start = self.manager.num_settled(key)
        blocks, offsets = self._slots(key, start, self.manager.length(key))
        layers: list[Any] = list(cache.layers)
        for layer, own in enumerate(layers):
            self.keys[layer, blocks, offsets] = own.keys[0, :, start:].transpose(0, 1)  # (T, K, D)
            self.values[layer, blocks, offsets] = own.values[0, :, start:].transpose(0, 1)
        self.manager.publish(key)

    def append(self, key: int, token: int) -> bool:
        """A slot for one more token; a block that others hold too is copied before it is written."""
        slot = self.manager.append(key, token)
        if slot is None:
            return False
        if slot.copied_from is not None:
            for pool in (self.keys, self.values):
                pool[:, slot.block] = pool[:, slot.copied_from]
        return True

    def fork(self, parent: int, child: int) -> None:
        """A second sequence that begins as the first one stands."""
        self.manager.fork(parent, child)

    def step(self) -> StepCache:
        """Every sequence through its block table."""
        return PagedStep(self)

    def release(self, key: int) -> None:
        """Let a sequence go; what others may share stays until its room is needed."""
        self.manager.release(key)

    def _slots(self, key: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks and offsets (T,) of the positions from `start` to `stop`."""
        device = self.keys.device
        positions = torch.arange(start, stop, device=device)
        table = torch.tensor(self.manager.blocks(key), device=device)
        return table[positions // self.manager.block_size], positions % self.manager.block_size


class PagedStep(StepCache):
    """One step over all sequences, each reading the blocks of its table."""

    def __init__(self, store: PagedStore) -> None:
        manager, device = store.manager, store.keys.device
        lengths = [manager.length(key) for key in manager.held]
        super().__init__(torch.tensor(lengths, device=device) - 1, max(lengths))
        self._store = store
        tables = [manager.blocks(key) for key in manager.held]
        width = max(map(len, tables))
        padded = [table + [0] * (width - len(table)) for table in tables]  # masked: any block will do
        self._tables = torch.tensor(padded, device=device)  # (n, M)
        self._newest = self._tables.gather(1, self.positions[:, None] // manager.block_size)[:, 0]
        self._offsets = self.positions % manager.block_size

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the new keys and values (n, K, 1, D) of a layer; copies of all its (n, K, num_slots, D)."""
        return (
            self._exchange(self._store.keys[layer_idx], key_states),
            self._exchange(self._store.values[layer_idx], value_states),
        )

    def _exchange(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        pool[self._newest, self._offsets] = new[:, :, 0]  # (n, K, D)
        gathered = pool[self._tables].flatten(1, 2)  # (n, M b, K, D)
        return gathered[:, : self.num_slots].transpose(1, 2)
