"""Greedy generation, with the KV cache and without it."""

from typing import Any

import torch
from transformers import DynamicCache


def prefill(
    model: Any, prompt: torch.Tensor, *, cache: DynamicCache | None = None, last_logits_only: bool = False
) -> tuple[torch.Tensor, DynamicCache]:
    """One pass over the whole prompt (B, T): the logits (B, T, V), or (B, 1, V), and the filled cache.

    With a `cache` the prompt continues what it holds.
    """
    if cache is None:
        cache = DynamicCache(config=model.config)
    output = model(prompt, cache=cache, use_cache=True, logits_to_keep=_kept(prompt, last_logits_only))
    return output.logits, cache


def decode_step(model: Any, token: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    """One new token (B, 1) against the cache, which grows by it: the logits (B, 1, V)."""
    logits: torch.Tensor = model(token, cache=cache, use_cache=True).logits
    return logits


@torch.inference_mode()
def greedy_cached(model: Any, prompt: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Generate with the cache: the prompt once, then one token a step. (B, num_tokens) ids."""
    logits, cache = prefill(model, prompt)
    token = logits[:, -1:].argmax(-1)  # (B, 1)
    tokens = [token]
    for _ in range(num_tokens - 1):
        token = decode_step(model, token, cache)[:, -1:].argmax(-1)
        tokens.append(token)
    return torch.cat(tokens, dim=1)


@torch.inference_mode()
def greedy_recompute(model: Any, prompt: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Generate without a cache: the whole sequence again at every step. (B, num_tokens) ids."""
    sequence = prompt
    for _ in range(num_tokens):
        token = full_pass(model, sequence)[:, -1:].argmax(-1)  # (B, 1)
        sequence = torch.cat([sequence, token], dim=1)
    return sequence[:, prompt.shape[1] :]


def full_pass(model: Any, sequence: torch.Tensor, *, last_logits_only: bool = False) -> torch.Tensor:
    """One pass over (B, T) that keeps no cache: logits (B, T, V), or (B, 1, V) of the last position."""
    kept = _kept(sequence, last_logits_only)
    logits: torch.Tensor = model(sequence, use_cache=False, logits_to_keep=kept).logits
    return logits


def _kept(sequence: torch.Tensor, last_only: bool) -> torch.Tensor | int:
    """Which positions' logits transformers shall make: the last one's by its index, or (0) all.

    As a count it is a slice in transformers, a view with gaps, for which torch's product on a CPU first copies the
    whole weight of the language-model head: 0.5 s of the chapter's model. An index gathers the one row.
    """
    return torch.tensor([sequence.shape[1] - 1], device=sequence.device) if last_only else 0


def tokens_fed_cached(num_prompt: int, num_tokens: int) -> int:
    """Token positions that pass through the model with a cache: the prompt, then all but the last token."""
    return num_prompt + num_tokens - 1


def tokens_fed_recompute(num_prompt: int, num_tokens: int) -> int:
    """Token positions without one: P + (P + 1) + ... + (P + T - 1)."""
    return num_tokens * num_prompt + num_tokens * (num_tokens - 1) // 2
