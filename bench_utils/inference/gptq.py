"""GPTQ: rounding errors are made good by the weights that are yet to be rounded."""

import torch

from bench_utils.inference.quantizers import Scheme, quantize, unpack_nibbles

# Of the paper (Frantar et al., arXiv 2210.17323) and its published code.
DAMPING = 0.01
BLOCK = 128


def hessian(x: torch.Tensor) -> torch.Tensor:
    """H = 2 / n X^T X (K, K) of the layer's squared error, for activations X (n, K)."""
    return 2 / len(x) * x.t() @ x


def gptq(
    weight: torch.Tensor, second: torch.Tensor, scheme: Scheme, *, in_order: bool = True, damping: float = DAMPING
) -> torch.Tensor:
    """What a weight (N, K) stands for when it is rounded column by column; `second`: its Hessian (K, K).

    The scheme is one of groups or rows; scales are chosen where a group begins. Not `in_order`: columns go by
    falling diag(H), the most active first, and groups are formed in that order.

    Raises:
        ValueError: the scheme has no scale of its own in every row, or H is not positive definite.
    """
    if scheme.territory not in ("row", "group"):
        raise ValueError(f"{scheme.name}: GPTQ needs scales by row or by group")
    rest, second = weight.float().clone(), second.float().clone()
    dead = second.diag() == 0  # inputs that are never active: their weights do nothing
    second.diagonal()[dead] = 1
    rest[:, dead] = 0
    order = torch.arange(rest.shape[1], device=rest.device)
    if not in_order:
        order = second.diag().argsort(descending=True)
        rest, second = rest[:, order], second[order][:, order]
    second.diagonal().add_(damping * second.diag().mean())
    lower, status = torch.linalg.cholesky_ex(second)
    if status.item():
        raise ValueError("the Hessian is not positive definite: more calibration tokens or more damping are needed")
    # Row j of the upper factor of H^-1 says how an error in column j is best shared among those after it. H is
    # inverted by its own factor: a general inverse is not symmetric in float32, and loses digits.
    factor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    rounded = torch.empty_like(rest)
    num_columns = rest.shape[1]
    size = scheme.size if scheme.territory == "group" else num_columns
    grid = None
    for start in range(0, num_columns, BLOCK):
        end = min(start + BLOCK, num_columns)
        errors = torch.empty_like(rest[:, start:end])
        for column in range(start, end):
            if column % size == 0:
                grid = _Grid(rest[:, column : column + size], scheme)
            assert grid is not None
            rounded[:, column] = grid.round(rest[:, column])
            error = (rest[:, column] - rounded[:, column]) / factor[column, column]
            rest[:, column + 1 : end] -= torch.outer(error, factor[column, column + 1 : end])
            errors[:, column - start] = error
        rest[:, end:] -= errors @ factor[start:end, end:]
    return rounded[:, order.argsort()]


class _Grid:
    """The scale and zero of each row, as the quantizer chooses them for a group of columns (N, g)."""

    def __init__(self, columns: torch.Tensor, scheme: Scheme) -> None:
        packed = quantize(columns, scheme)
        scales = packed.read_scales()
        self._scales = torch.where(scales == 0, 1.0, scales)  # of a group of zeros, which stay zeros
        if packed.zeros is not None:
            self._zeros = unpack_nibbles(packed.zeros, len(scales)).float()
            self._low, self._high = 0.0, 2.0**scheme.bits - 1
        else:
            self._zeros = torch.zeros_like(scales)
            self._low, self._high = -float(scheme.qmax) - 1, float(scheme.qmax)

    def round(self, column: torch.Tensor) -> torch.Tensor:
        """A column (N,) at its nearest values on the grid."""
        codes = (column / self._scales).round_().add_(self._zeros).clamp_(self._low, self._high)
        return (codes - self._zeros) * self._scales
