"""A lean decode step: the arithmetic of a gated decoder, and nothing of the framework around it.

One sequence; q, k and v are one product, and so are gate and up; the cache lies still and is written in place; the
residual stream is kept in float32. What remains beside the products is a few dozen small operations a layer: on a
CPU a quarter of a 4-bit step. torch.compile takes no more off them than its own calls cost.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional

from bench_utils.inference.kernels import Format
from bench_utils.inference.quantized_linear import QuantizedLinear
from bench_utils.models import facts
from bench_utils.models.facts import DecoderShape
from bench_utils.settings import NotApplicableError


class Linear(Protocol):
    """X (1, K) to (1, N)."""

    @property
    def num_bytes(self) -> int:
        """What its weight takes as it is kept."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The product."""


# Makes a linear map of (weight (N, K), bias (N,) or None, name).
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None, str], Linear]
# Rotary embeddings that change with the length that was reached.
_MOVING_ROPES = ("dynamic", "longrope")


class Dense:
    """A linear map as the model has it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, _name: str = "") -> None:
        self._weight, self._bias = weight, bias

    @property
    def num_bytes(self) -> int:
        """Of the weight and the bias."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The product, and the bias added."""
        return functional.linear(x, self._weight, self._bias)


def quantizing(format: Format, dtype: torch.dtype) -> MakeLinear:  # noqa: A002 - the field's word
    """Makes linear maps in a format: bare kernels, where the shape needs no padding and there is no bias."""

    def make(weight: torch.Tensor, bias: torch.Tensor | None, name: str) -> Linear:
        linear = QuantizedLinear(weight, bias, format, dtype, name)
        return linear.kernel if linear.is_bare else linear

    return make


class _Layer:
    """The weights of one layer, and its arithmetic for one token."""

    def __init__(self, layer: Any, source: Any, shape: DecoderShape, make: MakeLinear, name: str) -> None:
        attention, mlp, cache = layer.self_attn, layer.mlp, shape.cache
        own, own_mlp = source.self_attn, source.mlp
        self.num_queries, self.num_kv, self.head_dim = shape.num_query_heads, cache.num_kv_heads, cache.head_dim
        self.intermediate, self.scale, self.activation = shape.intermediate, attention.scaling, mlp.act_fn
        self.input_norm, self.mlp_norm = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        # A tensor: a number would become one in every norm of every step.
        wide = torch.promote_types(self.input_norm.dtype, torch.float32)
        self.eps = torch.tensor(layer.input_layernorm.variance_epsilon, dtype=wide, device=self.input_norm.device)
        self.qkv = _together([own.q_proj, own.k_proj, own.v_proj], f"{name} qkv", make)
        self.output = _together([own.o_proj], f"{name} output", make)
        self.gate_up = _together([own_mlp.gate_proj, own_mlp.up_proj], f"{name} gate and up", make)
        self.down = _together([own_mlp.down_proj], f"{name} down", make)
        self.head_norm: torch.Tensor | None = None
        self.stored_head_norms: tuple[torch.Tensor, ...] = ()
        if hasattr(attention, "q_norm"):  # queries and keys are normed head by head: (H + K, D)
            q, k = attention.q_norm.weight, attention.k_norm.weight
            self.stored_head_norms = q, k
            self.head_norm = torch.stack([q] * self.num_queries + [k] * self.num_kv)

    @property
    def num_bytes(self) -> int:
        """Of its weights."""
        linears = (self.qkv, self.output, self.gate_up, self.down)
        norms = (self.input_norm, self.mlp_norm, *self.stored_head_norms)
        return sum(linear.num_bytes for linear in linears) + sum(int(norm.nbytes) for norm in norms)

    def advance(
        self,
        stream: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        slots: torch.Tensor,
        filled: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """The residual stream (1, hidden) past this layer.

        angles: cos and sin (H + 2 K, D). slots: where its keys and values (2 K, D) go. filled: the keys and the
        values (1, K, T, D) up to there, these included.
        """
        qkv = self.qkv(_normed(stream, self.input_norm, self.eps)).view(-1, self.head_dim)  # (H + 2 K, D)
        if self.head_norm is not None:
            qk, v = qkv.split([len(self.head_norm), self.num_kv])
            qkv = torch.cat([_normed(qk.to(stream.dtype), self.head_norm, self.eps), v])
        cos, sin = angles
        qkv = torch.addcmul(qkv * cos, qkv.roll(self.head_dim // 2, -1), sin)
        slots.copy_(qkv[self.num_queries :])
        # The queries of a group stand where a prompt's positions would: all of them see all keys.
        queries = qkv[: self.num_queries].view(1, self.num_kv, -1, self.head_dim)
        attended = functional.scaled_dot_product_attention(queries, *filled, scale=self.scale)
        stream = stream + self.output(attended.reshape(1, -1))
        gate, up = self.gate_up(_normed(stream, self.mlp_norm, self.eps)).split(self.intermediate, dim=1)
        return stream + self.down(self.activation(gate).mul_(up))


class LeanDecoder:
    """Steps of one sequence (B = 1) through a llama, mistral, qwen2 or qwen3.

    `make` builds each projection, `make_head` the language-model head, of the model's own weights, or of those of
    `weights_of`, the same model in a finer dtype, to quantize from.

    Raises:
        UnknownCacheError: naming what of the config is not understood.
        NotApplicableError: its rotary embedding changes with the length.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_tokens: int,
        make: MakeLinear = Dense,
        make_head: MakeLinear = Dense,
        weights_of: Any | None = None,
    ) -> None:
        shape = facts.decoder_shape(model.config)
        decoder, weight = model.get_decoder(), model.get_input_embeddings().weight
        if (kind := getattr(decoder.rotary_emb, "rope_type", "default")) in _MOVING_ROPES:
            raise NotApplicableError(f"config field rope_type={kind!r}: its angles change with the length")
        self.dtype, device = weight.dtype, weight.device
        source = model if weights_of is None else weights_of
        layers = zip(decoder.layers, source.get_decoder().layers, strict=True)
        self._layers = [_Layer(layer, own, shape, make, f"layer {i}") for i, (layer, own) in enumerate(layers)]
        self._embedding, self._norm = weight, decoder.norm.weight
        head = (model if make_head is Dense else source).get_output_embeddings()
        self._head = make_head(head.weight, head.bias, "the head")
        self._is_tied = isinstance(self._head, Dense) and head.weight is weight
        self._num_queries, self._num_kv = shape.num_query_heads, shape.cache.num_kv_heads
        # Keys and values of a layer lie side by side, so that one copy takes both.
        size = (shape.cache.num_layers, 1, 2 * self._num_kv, max_tokens, shape.cache.head_dim)
        self._cache = torch.zeros(size, dtype=self.dtype, device=device)  # (L, 1, 2 K, T, D)
        positions = torch.arange(max_tokens, device=device)[None]
        cos, sin = (table[0] for table in decoder.rotary_emb(weight, positions))
        # Rotating a half onto the other turns a sign: it is kept in the table.
        half = shape.cache.head_dim // 2
        self._cos, self._sin = cos, torch.cat([-sin[:, :half], sin[:, half:]], dim=1)  # (T, D)

    @property
    def num_bytes(self) -> int:
        """Of the weights that a step reads: all but an input embedding of its own, which is looked up."""
        return sum(layer.num_bytes for layer in self._layers) + int(self._norm.nbytes) + self._head.num_bytes

    @property
    def resident_bytes(self) -> int:
        """Of all weights that are kept; a head that is the embedding itself counts once."""
        return self.num_bytes + (0 if self._is_tied else self._embedding.nbytes)

    def fill(self, tokens: torch.Tensor) -> None:
        """Take a prompt (T,) into the cache, from its start, a step a token."""
        for position, token in enumerate(tokens.split(1)):
            self.step(token, position)

    def greedy(self, token: torch.Tensor, position: int, num_tokens: int) -> torch.Tensor:
        """Feed a token (1,) at its position, choose the next, and so on: (num_tokens,). It can be repeated."""
        tokens = []
        for place in range(position, position + num_tokens):
            token = self.step(token, place).argmax(keepdim=True)
            tokens.append(token)
        return torch.cat(tokens)

    @torch.inference_mode()
    def step(self, token: torch.Tensor, position: int) -> torch.Tensor:
        """One token (1,) at its position, attending to all before it: logits (V,). It can be repeated."""
        angles = self._angles(position)
        slots = self._cache[:, 0, :, position]  # (L, 2 K, D)
        filled = zip(*self._cache[..., : position + 1, :].split(self._num_kv, dim=2), strict=True)
        stream = self._embedding[token].to(torch.promote_types(self.dtype, torch.float32))  # (1, hidden)
        for layer, own, whole in zip(self._layers, slots, filled, strict=True):
            stream = layer.advance(stream, angles, own, whole)
        return self._head(_normed(stream, self._norm, self._layers[0].eps))[0]

    def _angles(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and sin (H + 2 K, D) of a position; values are turned by none, so that one product does for all."""
        cos, sin = self._cos[position : position + 1], self._sin[position : position + 1]  # (1, D)
        turned, still = self._num_queries + self._num_kv, self._num_kv
        cos = torch.cat([cos.expand(turned, -1), torch.ones_like(cos).expand(still, -1)])
        return cos, torch.cat([sin.expand(turned, -1), torch.zeros_like(sin).expand(still, -1)])


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """RMSNorm: x / sqrt(mean(x^2) + eps) over the last dimension, rounded as the weight is, times the weight."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_()
    return (x * inverse).to(weight.dtype).mul_(weight)


def _together(linears: list[Any], name: str, make: MakeLinear) -> Linear:
    """Linear maps of one input as one, their outputs side by side."""
    if len(linears) == 1:
        return make(linears[0].weight, linears[0].bias, name)
    biases = [linear.bias for linear in linears]
    bias = None if biases[0] is None else torch.cat(biases)
    return make(torch.cat([linear.weight for linear in linears]), bias, name)
