"""Facts read off a model's config: the shape of its cache and of its projections, or why they are unknown."""

from dataclasses import dataclass
from typing import Any

from bench_utils.settings import NotApplicableError

# Fields that change what a cache holds per token. Until each is handled exactly, their models are refused.
_NOT_UNDERSTOOD = (
    "kv_lora_rank",  # multi-head latent attention
    "num_kv_shared_layers",  # layers that own no cache
    "attention_chunk_size",  # chunked layers
    "linear_num_key_heads",  # linear attention layers
    "mamba_d_state",  # state-space layers
    "is_encoder_decoder",
)
_PLAIN_LAYER = "full_attention"
# Families whose real caches were summed and found equal to the formula, by the tests. Others hide heads in fields
# of their own (falcon's multi_query), or keep another cache altogether.
VERIFIED_FAMILIES = (
    *("arcee", "cohere", "ernie4_5", "gemma", "glm4", "granite", "llama", "mistral", "mixtral", "nemotron"),
    *("olmo", "olmo2", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3"),
    *("stablelm", "starcoder2"),
)
# Of those, the dense ones whose every layer is q, k, v, o and a gated MLP of three matrices.
_GATED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


class UnknownCacheError(NotApplicableError):
    """The cache of this architecture is not understood; the message names the config field.

    Raised from a claim's setup it skips the case, with this reason, in pytest and in asv.
    """


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
        UnknownCacheError: naming the field of the config that is not understood.
    """
    for field in _NOT_UNDERSTOOD:
        if getattr(config, field, None):
            raise UnknownCacheError(f"config field {field}={getattr(config, field)!r}")
    layer_types = getattr(config, "layer_types", None) or []
    if strange := sorted(set(layer_types) - {_PLAIN_LAYER}):
        raise UnknownCacheError(f"config field layer_types holds {', '.join(strange)}")
    # A window without layer_types applies to every layer; Qwen2 keeps the field but switches it off.
    if not layer_types and getattr(config, "sliding_window", None):
        raise UnknownCacheError(f"config field sliding_window={config.sliding_window!r}")
    if config.model_type not in VERIFIED_FAMILIES:
        raise UnknownCacheError(f"config field model_type={config.model_type!r} is none of the verified ones")
    num_heads = _needed(config, "num_attention_heads")
    return CacheShape(
        num_layers=_needed(config, "num_hidden_layers"),
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or _needed(config, "hidden_size") // num_heads,
    )


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
        num_query_heads=_needed(config, "num_attention_heads"),
        hidden=_needed(config, "hidden_size"),
        intermediate=_needed(config, "intermediate_size"),
        vocab=_needed(config, "vocab_size"),
    )


def known_decoder_shape(config: Any) -> DecoderShape | None:
    """The same, or None where the cache is understood and the projections are not counted."""
    try:
        return decoder_shape(config)
    except UnknownCacheError:
        return None


def _needed(config: Any, field: str) -> int:
    value = getattr(config, field, None)
    if not isinstance(value, int):
        raise UnknownCacheError(f"config field {field} is missing")
    return value
