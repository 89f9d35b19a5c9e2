"""What each layer of a model keeps of the past, read off its config: exact, or refused by the field's name."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from bench_utils.settings import NotApplicableError

# Families whose every layer keeps every token, unless the config says otherwise, and whose decoding the mechanisms
# were tried with. Their real caches were summed and found equal to the layout, by the tests.
PLAIN_FAMILIES = (
    *("arcee", "cohere", "ernie4_5", "gemma", "glm4", "granite", "llama", "mistral", "mixtral", "nemotron"),
    *("olmo", "olmo2", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3"),
    *("stablelm", "starcoder2"),
)
# Families in which layers may share a cache.
_SHARING_FAMILIES = ("gemma3n_text",)
# Attention with a key and a value for every query head: fields that say otherwise are not read by these.
_MULTI_HEAD_FAMILIES = ("bloom", "gpt2", "gpt_neox", "opt")
# All families whose caches were summed so: others hide heads in fields of their own (falcon's multi_query), or keep
# another cache altogether.
VERIFIED_FAMILIES = (
    *PLAIN_FAMILIES,
    *_MULTI_HEAD_FAMILIES,
    *("apertus", "cohere2", "deepseek_v2", "deepseek_v3", "exaone4", "gemma2", "gemma3", "gemma3_text"),
    *("gemma3n_text", "glm4_moe_lite", "gpt_oss", "granitemoe", "llama4_text", "ministral3", "minimax_m2"),
    *("olmo3", "olmo_hybrid", "qwen3_5_text", "qwen3_next"),
)
# Fields that tell what another family keeps, for the message that refuses it.
_TELLING = ("kv_lora_rank", "mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads", "conv_L_cache")
_FLOAT32_BYTES = 4


class UnknownCacheError(NotApplicableError):
    """The cache of this architecture is not understood; the message names the config field.

    Raised from a claim's setup it skips the case, with this reason, in pytest and in asv.
    """


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps of one sequence. `field` names the config field that makes it other than plain."""

    num_heads: int = 0
    # Of the key and of the value of one token in one head; latent attention keeps two vectors that differ.
    key_dim: int = 0
    value_dim: int = 0
    # A window forgets all but its newest tokens; None: everything is kept.
    most_tokens: int | None = None
    # A recurrent state, whatever the length: elements of the model's dtype, and others always in float32.
    state_elements: int = 0
    state_float32: int = 0
    field: str = ""

    @property
    def elements_per_token(self) -> int:
        """K (D_key + D_value)."""
        return self.num_heads * (self.key_dim + self.value_dim)

    def num_slots(self, num_tokens: int, block: int = 1) -> int:
        """Slots that a sequence has taken at most on its way to so many tokens, in whole blocks of so many.

        n consecutive tokens lie in up to ceil((n - 1) / b) + 1 blocks, since a window starts anywhere in one.
        """
        num_blocks = -(-num_tokens // block)
        if self.most_tokens is not None:
            num_blocks = min(num_blocks, -(-(self.most_tokens - 1) // block) + 1)
        return num_blocks * block

    def state_bytes(self, element_bytes: int) -> int:
        """The recurrent state of one sequence."""
        return self.state_elements * element_bytes + self.state_float32 * _FLOAT32_BYTES


@dataclass(frozen=True)
class CacheLayout:
    """All layers of a model, in order."""

    layers: tuple[LayerCache, ...]

    @property
    def depends_on_total_only(self) -> bool:
        """Whether only the number of tokens over all sequences matters: none is forgotten, no state is kept."""
        return all(layer.most_tokens is None and not layer.state_bytes(1) for layer in self.layers)

    def bytes(self, num_tokens: int, element_bytes: int, block: int = 1) -> int:
        """The cache of one sequence of so many tokens, in blocks of so many; of none: not even a state."""
        if num_tokens == 0:
            return 0
        return sum(
            num * (layer.elements_per_token * layer.num_slots(num_tokens, block) * element_bytes)
            + num * layer.state_bytes(element_bytes)
            for layer, num in Counter(self.layers).items()
        )

    def token_bytes(self, element_bytes: int) -> int:
        """What one more token takes in a sequence that is longer than every window."""
        return sum(layer.elements_per_token for layer in self.layers if layer.most_tokens is None) * element_bytes


def cache_layout(config: Any) -> CacheLayout:
    """The layers' caches of a decoder: full, sliding, chunked, latent and gated-delta layers, shared ones too.

    Raises:
        UnknownCacheError: naming the field of the config that is not understood.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UnknownCacheError("config field is_encoder_decoder=True: not a decoder of one causal cache")
    decoder = config.get_text_config(decoder=True)
    if config.model_type not in VERIFIED_FAMILIES:
        known = (f"{field}={value!r} of " for field in _TELLING if (value := getattr(decoder, field, None)))
        name = f"{next(known, '')}model_type={config.model_type!r}"
        raise UnknownCacheError(f"config field {name} is none of the verified ones")
    if decoder.is_heterogeneous:
        raise UnknownCacheError("config field per_layer_config: layers differ in more than their kind")
    num_layers = needed(decoder, "num_hidden_layers")
    kinds = getattr(decoder, "layer_types", None) or [_kind(decoder)] * num_layers
    num_shared = _num_shared(decoder, num_layers)
    layers = [_layer(kind, decoder) for kind in kinds[: num_layers - num_shared]]
    return CacheLayout((*layers, *[LayerCache(field=f"num_kv_shared_layers={num_shared}")] * num_shared))


def needed(config: Any, field: str) -> int:
    """A whole number that the config must have.

    Raises:
        UnknownCacheError: it has none.
    """
    value = getattr(config, field, None)
    if not isinstance(value, int):
        raise UnknownCacheError(f"config field {field} is missing")
    return value


def _kind(config: Any) -> str:
    """All layers' kind where no layer_types say it: the fields of a window are there or not."""
    if getattr(config, "sliding_window", None) is not None:
        return "sliding_attention"
    return "full_attention" if getattr(config, "attention_chunk_size", None) is None else "chunked_attention"


def _num_shared(config: Any, num_layers: int) -> int:
    """How many of the last layers read what earlier ones keep; a field that only some families heed."""
    num_shared: int = getattr(config, "num_kv_shared_layers", None) or 0
    if num_shared and (config.model_type not in _SHARING_FAMILIES or not 0 < num_shared < num_layers):
        raise UnknownCacheError(
            f"config field num_kv_shared_layers={num_shared} of {num_layers} layers of {config.model_type!r}"
        )
    return num_shared


def _layer(kind: str, config: Any) -> LayerCache:
    if kind == "linear_attention":
        return _gated_delta(config)
    if getattr(config, "kv_lora_rank", None):
        return _latent(kind, config)
    kv_heads = num_heads = needed(config, "num_attention_heads")
    head_dim = needed(config, "hidden_size") // num_heads
    if config.model_type not in _MULTI_HEAD_FAMILIES:
        kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
        head_dim = getattr(config, "head_dim", None) or head_dim
    if kind == "full_attention":
        return LayerCache(kv_heads, head_dim, head_dim)
    field = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}.get(kind)
    if field is None:
        raise UnknownCacheError(f"config field layer_types holds {kind}")
    window = needed(config, field)
    if window < 2:
        raise UnknownCacheError(f"config field {field}={window}: a window holds two tokens at least")
    # Between two steps window - 1 tokens are read again, but the memory of the one that fell out is held still.
    return LayerCache(kv_heads, head_dim, head_dim, most_tokens=window, field=f"{field}={window}")


def _latent(kind: str, config: Any) -> LayerCache:
    """Multi-head latent attention: one compressed vector, and the rotated part of the key beside it."""
    rank = needed(config, "kv_lora_rank")
    if kind != "full_attention":
        raise UnknownCacheError(f"config field kv_lora_rank={rank} with layer_types of {kind}")
    return LayerCache(1, rank, needed(config, "qk_rope_head_dim"), field=f"kv_lora_rank={rank}")


def _gated_delta(config: Any) -> LayerCache:
    """A gated delta net: the convolution's last inputs, and a float32 matrix for every value head."""
    key_heads, value_heads = (needed(config, f"linear_num_{what}_heads") for what in ("key", "value"))
    key_dim, value_dim = (needed(config, f"linear_{what}_head_dim") for what in ("key", "value"))
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return LayerCache(
        state_elements=channels * needed(config, "linear_conv_kernel_dim"),
        state_float32=value_heads * key_dim * value_dim,
        field=f"linear_num_key_heads={key_heads}",
    )
