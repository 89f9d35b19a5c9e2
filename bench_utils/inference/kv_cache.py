"""The KV cache: its size by formula, and real caches whose tensors can be summed."""

from typing import Any

import torch
from transformers import DynamicCache

from bench_utils.devices import demand_memory
from bench_utils.models.facts import CacheShape, cache_shape


def bytes_per_token(shape: CacheShape, element_bytes: int) -> int:
    """2 L K D s: keys and values, every layer, every kv head, s bytes an element."""
    return shape.elements_per_token * element_bytes


def tensor_bytes(cache: DynamicCache) -> int:
    """The bytes that the cache's own tensors hold: keys, values, and the states of layers that keep those.

    By their storages: a window's tensors are views of larger ones, a whole prompt until the step after it.
    """
    layers: list[Any] = list(cache.layers)
    kept = [tensor for layer in layers for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    for layer in layers:
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            kept.extend(states.values())
    return sum(tensor.untyped_storage().nbytes() for tensor in kept if tensor is not None)


def filled_cache(
    config: Any,
    *,
    batch: int,
    num_tokens: int,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int | None = None,
) -> DynamicCache:
    """A cache of the model's own class holding `num_tokens` a sequence, without running the model.

    Zeros, or seeded normal numbers. Every layer's tensors are (B, K, T, D).
    """
    shape = cache_shape(config)
    size = (batch, shape.num_kv_heads, num_tokens, shape.head_dim)
    num_bytes = bytes_per_token(shape, dtype.itemsize) * batch * num_tokens
    demand_memory(num_bytes, torch.device(device), f"a cache of {batch} x {num_tokens:,} tokens")
    cache = DynamicCache(config=config)
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    for layer in range(shape.num_layers):
        if generator is None:
            key, value = (torch.zeros(size, dtype=dtype, device=device) for _ in range(2))
        else:
            key, value = (torch.randn(size, generator=generator, dtype=dtype, device=device) for _ in range(2))
        cache.update(key, value, layer)
    return cache


def tokens_where_cache_outweighs(weight_bytes: int, token_bytes: int) -> int:
    """The first number of tokens whose cache is larger than the weights."""
    return weight_bytes // token_bytes + 1
