"""One decode step of attention: a single head both ways, and grouped query heads over a shared cache."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Head:
    """One attention head with its input projections, and the cache of a sequence already seen.

    x (n, D) are the inputs of all n positions; keys and values (n, D) hold those of the first n - 1, and a row
    for the newest.
    """

    w_query: torch.Tensor
    w_key: torch.Tensor
    w_value: torch.Tensor
    x: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def make_head(num_positions: int, head_dim: int = 64, *, seed: int = 0, device: str = "cpu") -> Head:
    """A head over seeded random inputs in float32, its cache filled up to the newest position."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    scale = head_dim**-0.5
    w_query, w_key, w_value = (normal(head_dim, head_dim) * scale for _ in range(3))
    x = normal(num_positions, head_dim)
    keys, values = x @ w_key, x @ w_value
    keys[-1], values[-1] = 0.0, 0.0  # the step itself computes the newest
    return Head(w_query, w_key, w_value, x, keys, values)


def recompute_step(head: Head) -> tuple[torch.Tensor, torch.Tensor]:
    """The newest position's output (D,) and the scores (n, n), everything computed anew.

    Source: scaled dot-product attention, softmax(Q K^T / sqrt(d)) V, with the causal mask.
    """
    query, key, value = head.x @ head.w_query, head.x @ head.w_key, head.x @ head.w_value  # (n, D)
    scores = query @ key.T / key.shape[1] ** 0.5  # (n, n)
    future = torch.ones_like(scores, dtype=torch.bool).triu_(1)
    weights = scores.masked_fill_(future, float("-inf")).softmax(-1)
    return (weights @ value)[-1], scores


def cached_step(head: Head) -> tuple[torch.Tensor, torch.Tensor]:
    """The newest position's output (D,) and its scores (1, n): keys and values of the others are kept."""
    newest = head.x[-1:]  # (1, D)
    head.keys[-1:] = newest @ head.w_key
    head.values[-1:] = newest @ head.w_value
    scores = (newest @ head.w_query) @ head.keys.T / head.keys.shape[1] ** 0.5  # (1, n)
    return (scores.softmax(-1) @ head.values)[0], scores


def grouped_step(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One token's attention over a cache that groups of query heads share; each key is read once.

    query (B, H, D), keys and values (B, K, T, D), H a multiple of K. Returns (B, H, D).
    Source: Ainslie et al., GQA (arXiv 2305.13245); K = H is multi-head, K = 1 multi-query attention.
    """
    batch, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    assert num_heads % num_kv_heads == 0, f"{num_heads} query heads over {num_kv_heads} kv heads"
    grouped = query.view(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)  # (B, K, G, D)
    scores = grouped @ keys.transpose(-1, -2) / head_dim**0.5  # (B, K, G, T)
    output: torch.Tensor = (scores.softmax(-1) @ values).view(batch, num_heads, head_dim)
    return output
