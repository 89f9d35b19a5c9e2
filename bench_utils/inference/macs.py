"""Multiply-accumulates by formula: matrix products only, as a counter of them sees it."""

from bench_utils.models.facts import DecoderShape


def head_step_macs(num_positions: int, head_dim: int, *, cached: bool) -> int:
    """One step of a single head over n positions.

    Recompute: 3 n d^2 for the projections, n^2 d for the scores, n^2 d for the sum. Cached: 3 d^2 + 2 n d.
    """
    rows = 1 if cached else num_positions
    return 3 * rows * head_dim**2 + 2 * rows * num_positions * head_dim


def prefill_macs(shape: DecoderShape, num_prompt: int, *, causal: bool = False) -> int:
    """A prompt in one pass that makes only its last position's logits.

    As a counter sees it; `causal` counts what must be multiplied, as a fused kernel does: position i attends to i
    tokens, which leaves n (n + 1) H D of the 2 n^2 H D of a layer's attention.
    """
    unread = (num_prompt - 1) * shape.head_macs_per_token
    hidden = num_prompt * (num_prompt - 1) * shape.num_query_heads * shape.cache.head_dim * shape.cache.num_layers
    return model_step_macs(shape, num_prompt, cached=False) - unread - (hidden if causal else 0)


def model_step_macs(shape: DecoderShape, num_positions: int, *, cached: bool) -> int:
    """One step of the whole model over n positions, logits of every row it computes.

    Every row passes all projections and the head; a row attends to all n positions (the causal mask hides
    products, it does not save them): 2 n H D in each layer.
    """
    rows = 1 if cached else num_positions
    attention = 2 * num_positions * shape.num_query_heads * shape.cache.head_dim * shape.cache.num_layers
    return rows * (shape.projection_macs_per_token + shape.head_macs_per_token + attention)
