"""Facts read off a model's config: the shape of its cache and of its projections, or why they are unknown."""

from dataclasses import dataclass
from typing import Any

from bench_utils.models.cache_layout import PLAIN_FAMILIES, UnknownCacheError, cache_layout, needed

# The dense families whose every layer is q, k, v, o and a gated MLP of three matrices.
_GATED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class CacheShape:
    """The cache of one token: L layers, K kv heads, D head dim."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def elements_per_token(self) -> int:
        """2 L K D: a key and a value vector in every layer for every kv head."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class DecoderShape:
    """The matrices that a token passes: enough to count multiply-accumulates exactly."""

    cache: CacheShape
    num_query_heads: int
    hidden: int
    intermediate: int
    vocab: int

    @property
    def projection_macs_per_token(self) -> int:
        """q, k, v, o and the three gated MLP matrices of every layer (no language-model head)."""
        d = self.cache.head_dim
        attention = 2 * self.hidden * self.num_query_heads * d + 2 * self.hidden * self.cache.num_kv_heads * d
        return self.cache.num_layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_macs_per_token(self) -> int:
        """The language-model head."""
        return self.hidden * self.vocab


def cache_shape(config: Any) -> CacheShape:
    """The cache's shape of a decoder with full attention in every layer (MHA, GQA or MQA).

    Raises:
        UnknownCacheError: naming the field of the config that is not understood, or makes a layer another.
    """
    layers = cache_layout(config).layers
    if others := [layer.field for layer in layers if layer.field]:
        raise UnknownCacheError(f"config field {others[0]}")
    if config.model_type not in PLAIN_FAMILIES:
        raise UnknownCacheError(f"config field model_type={config.model_type!r}: its decoding was not tried")
    return CacheShape(num_layers=len(layers), num_kv_heads=layers[0].num_heads, head_dim=layers[0].key_dim)


def demand_dense(config: Any) -> None:
    """Refuse a mixture of experts, whose step reads some of its weights: which ones depends on the tokens.

    Raises:
        UnknownCacheError: naming the field of the config; for an unknown cache too.
    """
    cache_shape(config)
    for field in ("num_local_experts", "num_experts"):
        if getattr(config, field, None):
            raise UnknownCacheError(
                f"config field {field}={getattr(config, field)!r}: a step reads some experts only"
            )


def decoder_shape(config: Any) -> DecoderShape:
    """The projections' shapes of a dense decoder with a gated MLP (llama, qwen2 and their like).

    Raises:
        UnknownCacheError: naming the field of the config that is not understood.
    """
    if config.model_type not in _GATED_FAMILIES:
        raise UnknownCacheError(f"config field model_type={config.model_type!r}")
    return DecoderShape(
        cache=cache_shape(config),
        num_query_heads=needed(config, "num_attention_heads"),
        hidden=needed(config, "hidden_size"),
        intermediate=needed(config, "intermediate_size"),
        vocab=needed(config, "vocab_size"),
    )


def known_decoder_shape(config: Any) -> DecoderShape | None:
    """The same, or None where the cache is understood and the projections are not counted."""
    try:
        return decoder_shape(config)
    except UnknownCacheError:
        return None
