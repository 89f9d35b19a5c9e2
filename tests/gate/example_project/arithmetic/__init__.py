"""The project's own code: what its claims are about."""

import torch


def total(values: torch.Tensor) -> torch.Tensor:
    """The sum of all values, as a product with ones."""
    return values @ torch.ones_like(values)
