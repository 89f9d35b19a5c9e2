"""Which formats this machine has kernels for: what needs one is skipped with the reason where there is none."""

import pytest
import torch

from bench_utils.inference.kernel_choice import choose

BF16 = torch.bfloat16


def lacking(*forms, dtype=BF16):
    """What is missing for these formats; '' where nothing is."""
    return "; ".join(
        choose(form, "cpu", dtype).lacks for form in forms if choose(form, "cpu", dtype).kernel is None
    )


def needs(*forms, dtype=BF16):
    """Skip the test that calls it where a kernel is missing."""
    if reason := lacking(*forms, dtype=dtype):
        pytest.skip(reason)


def needs_mark(*forms, dtype=BF16):
    """The same as a mark."""
    return pytest.mark.skipif(bool(lacking(*forms, dtype=dtype)), reason=lacking(*forms, dtype=dtype) or "there")
