"""What people do about outliers: per-channel scales, LLM.int8(), SmoothQuant and AWQ (its search for scales).

Shapes: activations X (T, K), weights W (N, K), products X W^T (T, N). GPTQ, which moves weights, has a module.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench_utils.inference.kernels import integer_product, quantize_tokens
from bench_utils.inference.quantizers import INT8_ROW, INT8_TENSOR, Scheme, quantize

# Of LLM.int8() (Dettmers et al., arXiv 2208.07339): an activation from it on is an outlier.
THRESHOLD = 6.0
# Of SmoothQuant (Xiao et al., arXiv 2211.10438): half of the difficulty goes to the weights.
ALPHA = 0.5
# Of AWQ (Lin et al., arXiv 2306.00978): powers of the mean activation that are tried.
NUM_RATIOS = 20


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """An int8 weight for activations that become int8 too: codes (N, K), and scales (1,), or (N,) of the rows."""

    codes: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor, *, per_row: bool, name: str = "the weight") -> "Int8Weight":
        """Quantize a weight (N, K), symmetric by its largest magnitude."""
        packed = quantize(weight, INT8_ROW if per_row else INT8_TENSOR, name)
        return cls(packed.codes.view(packed.shape), packed.scales)

    def multiply(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Int8 activations (T, K) with scales (T, 1) or (1, 1): the product (T, N), its sums exact in int32."""
        return integer_product(codes, self.codes) * scales * self.scales


def quantize_whole(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations as int8 with one scale for all: codes (T, K), scale (1, 1). Plain, with no remedy."""
    scale = (x.abs().amax() / 127).view(1, 1)
    return (x / scale).round_().to(torch.int8), scale


def mixed_product(x: torch.Tensor, weight: Int8Weight, threshold: float = THRESHOLD) -> torch.Tensor:
    """LLM.int8(): inputs with an outlier anywhere are multiplied as they are, the others in int8 by token and row.

    The weights of the former are read back from their codes, so that nothing else need be kept.
    """
    is_outlier = (x.abs() >= threshold).any(0)  # (K,)
    codes, scales = quantize_tokens(x.masked_fill(is_outlier, 0.0))
    product = weight.multiply(codes, scales)
    if bool(is_outlier.any()):
        columns = weight.codes[:, is_outlier].to(x.dtype) * weight.scales[:, None]
        product += x[:, is_outlier] @ columns.t()
    return product


def smoothing_scales(x: torch.Tensor, weights: Sequence[torch.Tensor], alpha: float = ALPHA) -> torch.Tensor:
    """SmoothQuant's scales (K,): x / s and W s have the same product, and share the range between them.

    `weights`: all that read these activations, which follow a norm that takes up 1 / s.
    """
    # s_j = max|X_j|^a / max|W_j|^(1 - a)
    of_inputs = x.abs().amax(0).clamp(min=1e-5)
    of_weights = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).clamp(min=1e-5)
    return of_inputs**alpha / of_weights ** (1 - alpha)


def awq_scales(x: torch.Tensor, weights: Sequence[torch.Tensor], scheme: Scheme) -> tuple[torch.Tensor, float]:
    """AWQ's scales (K,) and the ratio r that gave them: W s is quantized and divided by s again.

    Of r = 0, 1/20, ... 19/20 the one with the least error of the products over `weights`; r = 0 is plain rounding.
    """
    mean = x.abs().mean(0).clamp(min=1e-4)
    products = [x @ weight.t() for weight in weights]
    best = (float("inf"), torch.ones_like(mean), 0.0)
    for ratio in (index / NUM_RATIOS for index in range(NUM_RATIOS)):
        # s = mean|X|^r / sqrt(max s min s)
        scales = mean**ratio
        scales = scales / (scales.max() * scales.min()).sqrt()
        loss = 0.0
        for weight, product in zip(weights, products, strict=True):
            loss += float((x @ awq_weight(weight, scales, scheme).t() - product).square().sum())
        best = min(best, (loss, scales, ratio), key=lambda found: found[0])
    return best[1], best[2]


def awq_weight(weight: torch.Tensor, scales: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """What a weight (N, K) stands for when it is quantized with its columns scaled."""
    return quantize(weight * scales, scheme).dequantize() / scales
