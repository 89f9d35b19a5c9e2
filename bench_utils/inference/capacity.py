"""Does it fit: how many tokens of cache the memory holds beside the weights, for how many users at once."""

import math
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

import torch

from bench_utils.inference.projections import linear_maps
from bench_utils.inference.quantizers import INT4_GROUPS, INT8_ROW, NF4_BLOCKS, Scheme
from bench_utils.models.cache_layout import CacheLayout, LayerCache, cache_layout
from bench_utils.models.loading import skeleton

# What a server needs besides weights and cache, as the chapter counts it: 1.5 GiB. H2 measures this machine's.
OVERHEAD_BYTES = 3 * 2**29
# Tokens a block of a paged cache holds. Source: Kwon et al., PagedAttention (SOSP 2023).
BLOCK = 16


@dataclass(frozen=True)
class Format:
    """How weights are stored: `bits` of every weight, or `scheme` for the projections and 16 bit for the rest."""

    name: str
    bits: Fraction
    scheme: Scheme | None = None

    @property
    def element_bytes(self) -> int:
        """Of what is not packed, and of the cache."""
        return 4 if self.bits == 32 else 2


def _packed(name: str, scheme: Scheme) -> Format:
    # Scales in 16 bit, as the chapter counts them: 4 + 16 / 128 and 4 + 16 / 64 bits. Those of rows it leaves out.
    bits = scheme.bits + (Fraction(16, scheme.size) if scheme.size else 0)
    return Format(name, Fraction(bits), replace(scheme, scale_dtype=torch.float16))


FORMATS = {
    found.name: found
    for found in (
        Format("fp32", Fraction(32)),
        Format("fp16", Fraction(16)),
        _packed("int8", INT8_ROW),
        _packed("nf4", NF4_BLOCKS[64]),
        _packed("int4", INT4_GROUPS[128]),
    )
}


class Weights(Protocol):
    """The weights of a model, whatever they are stored in."""

    @property
    def num(self) -> int:
        """How many there are; what is tied counts once."""

    def num_bytes(self, stored: Format) -> int:
        """What they take in a format."""


@dataclass(frozen=True)
class Parameters:
    """So many weights, of which nothing else is known: every one takes the format's bits."""

    num: int

    def num_bytes(self, stored: Format) -> int:
        """ceil(num x bits / 8)."""
        return math.ceil(self.num * stored.bits / 8)


@dataclass(frozen=True)
class Matrices:
    """The projections' shapes (N, K), and how many other weights there are: embeddings, norms, the head.

    `num_float32`: those that the family keeps in float32 whatever the rest is in, such as a router's.
    """

    projected: tuple[tuple[int, int], ...]
    num_others: int
    num_float32: int = 0

    @property
    def num_projected(self) -> int:
        """The weights of all projections."""
        return sum(rows * columns for rows, columns in self.projected)

    @property
    def num(self) -> int:
        """All of them; what is tied is counted once."""
        return self.num_projected + self.num_others + self.num_float32

    def num_bytes(self, stored: Format) -> int:
        """Packed projections with their scales, to the byte, and the rest as it is."""
        others = self.num_others * stored.element_bytes + self.num_float32 * torch.float32.itemsize
        if (scheme := stored.scheme) is None:
            return others + self.num_projected * stored.element_bytes
        return others + sum(num * scheme.packed_bytes(shape) for shape, num in Counter(self.projected).items())


@dataclass(frozen=True)
class ModelSize:
    """What of a model decides whether it fits.

    `most_positions`: the longest sequence that it was made for. `packed_in`: what its file has its weights in.
    """

    name: str
    weights: Weights
    layout: CacheLayout
    most_positions: int | None = None
    packed_in: str = ""


def _class_of(name: str, billions: int, num_layers: int, num_kv_heads: int) -> ModelSize:
    layers = (LayerCache(num_kv_heads, 128, 128),) * num_layers
    return ModelSize(name, Parameters(billions * 10**9), CacheLayout(layers))


# The chapter's three: grouped-query attention with 8 heads, but for the 13B's 40, one for each query.
CHAPTER_CLASSES = {
    found.name: found
    for found in (_class_of("7b", 7, 32, 8), _class_of("13b", 13, 40, 40), _class_of("70b", 70, 80, 8))
}


def size_of(config: Any, name: str, most_positions: int | None = None, packed_in: str = "") -> ModelSize:
    """A config's model: its matrices are laid out without memory, its weights are not needed.

    Raises:
        UnknownCacheError: naming the field of the config that is not understood.
        ModelLoadError: the fields do not go together.
    """
    layout = cache_layout(config)
    return ModelSize(name, matrices_of(skeleton(config, name)), layout, most_positions, packed_in)


def matrices_of(model: Any) -> Matrices:
    """A 16-bit model's projections, those of stacked experts too, and the numbers of its other weights."""
    maps = [weight for _, weight in linear_maps(model) if weight.dtype != torch.float32]
    num_float32 = sum(p.numel() for p in model.parameters() if p.dtype == torch.float32)
    num_rest = sum(p.numel() for p in model.parameters()) - num_float32 - sum(weight.numel() for weight in maps)
    return Matrices(tuple((weight.shape[0], weight.shape[1]) for weight in maps), num_rest, num_float32)


@dataclass(frozen=True)
class Capacity:
    """Memory with a model in it."""

    memory_bytes: int
    weight_bytes: int
    layout: CacheLayout
    element_bytes: int = 2
    overhead_bytes: int = OVERHEAD_BYTES

    @property
    def cache_bytes(self) -> int:
        """What is left for the cache; negative: the weights do not fit."""
        return self.memory_bytes - self.overhead_bytes - self.weight_bytes

    def sequence_bytes(self, num_tokens: int, block: int = 1) -> int:
        """The cache of one user with so many tokens, in blocks of so many (1: contiguous)."""
        return self.layout.bytes(num_tokens, self.element_bytes, block)

    @property
    def num_tokens(self) -> int:
        """(memory - overhead - weights) / cache bytes per token, over all users at once.

        Of a layout that keeps every token of every user; of others it is what one user adds at the end.
        """
        return max(self.cache_bytes, 0) // self.layout.token_bytes(self.element_bytes)

    def longest_context(self, block: int = 1, num_users: int = 1) -> int | None:
        """The most tokens that each of so many users can have; None: any number, as every layer forgets."""
        room = max(self.cache_bytes, 0) // num_users
        step = self.layout.token_bytes(self.element_bytes)
        # Beyond all windows a token costs at least a step; where it costs nothing, the windows end it.
        widest = max((layer.most_tokens or 0 for layer in self.layout.layers), default=0) + block
        most = room // step + block if step else widest
        if not step and self.sequence_bytes(most, block) <= room:
            return None
        return bisect_right(range(1, most + 1), room, key=lambda num: self.sequence_bytes(num, block))

    def num_users(self, num_tokens: int, block: int = 1) -> int:
        """How many users with so many tokens each fit at once."""
        return max(self.cache_bytes, 0) // self.sequence_bytes(num_tokens, block)
