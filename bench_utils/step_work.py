"""What prefill and decode must move and multiply, for a model at hand: their place on the roofline."""

from collections.abc import Sequence

from bench_utils.inference import macs
from bench_utils.inference.kv_cache import bytes_per_token
from bench_utils.measure.bounds import Work
from bench_utils.models import facts
from bench_utils.models.loading import LoadedModel


def decode_work(loaded: LoadedModel, contexts: Sequence[int]) -> Work | None:
    """One step for sequences that hold `contexts` tokens before it: weights once, each one's cache once.

    None where the projections of this architecture are not counted.
    """
    if (shape := facts.known_decoder_shape(loaded.config)) is None:
        return None
    multiplied = sum(macs.model_step_macs(shape, context + 1, cached=True) for context in contexts)
    return Work(decode_bytes(loaded, contexts), multiplied, loaded.weight_bytes, loaded.placement.dtype_name)


def decode_bytes(loaded: LoadedModel, contexts: Sequence[int]) -> int:
    """Bytes that such a step must read: weights once, and the cache of every token attended to."""
    token_bytes = bytes_per_token(facts.cache_shape(loaded.config), loaded.placement.dtype.itemsize)
    return loaded.step_weight_bytes + token_bytes * sum(context + 1 for context in contexts)


def prefill_work(loaded: LoadedModel, num_prompt: int) -> Work | None:
    """One pass over a prompt with its last position's logits: weights once, the cache written, what causality hides
    not multiplied.
    """
    if (shape := facts.known_decoder_shape(loaded.config)) is None:
        return None
    written = num_prompt * bytes_per_token(shape.cache, loaded.placement.dtype.itemsize)
    return Work(
        loaded.step_weight_bytes + written,
        macs.prefill_macs(shape, num_prompt, causal=True),
        loaded.weight_bytes,
        loaded.placement.dtype_name,
    )
