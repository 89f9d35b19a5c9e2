"""The knee: found where it was put, with an interval that holds it, and refused where it could only be made up."""

import numpy as np
import pytest

from bench_utils.measure.knee import find_knee

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def curve(knee, before, after, noise=0.0, seed=0, num_samples=11):
    """Samples of a time that grows as B^before up to the knee and as B^after past it."""
    rng = np.random.default_rng(seed)
    return {
        b: [
            float(min(b, knee) ** before * max(b / knee, 1) ** after * rng.lognormal(0, noise))
            for _ in range(num_samples)
        ]
        for b in BATCHES
    }


@pytest.mark.parametrize("knee", [4, 11, 16])
def test_a_clean_knee_is_found_where_it_is(knee):
    found = find_knee(curve(knee, 0.2, 1.0))
    assert found.batch.value == pytest.approx(knee, rel=0.02)
    assert found.exponent_before.value == pytest.approx(0.2, abs=0.01)
    assert found.exponent_after.value == pytest.approx(1.0, abs=0.01)


def test_the_interval_holds_the_knee_about_as_often_as_it_says():
    """Of 60 noisy curves at 95 % fewer than 48 hits have a probability below 1e-5."""
    hits = sum(
        found.batch.low <= 16 <= found.batch.high
        for found in (find_knee(curve(16, 0.1, 0.95, noise=0.05, seed=seed)) for seed in range(60))
    )
    assert hits >= 48


def test_the_same_samples_give_the_same_knee():
    samples = curve(8, 0.1, 1.0, noise=0.1)
    assert find_knee(samples) == find_knee(samples)


def test_a_straight_line_has_the_same_exponent_on_both_sides():
    found = find_knee(curve(16, 0.5, 0.5))
    assert found.exponent_before.value == pytest.approx(found.exponent_after.value, abs=1e-6)


def test_four_sizes_are_too_few():
    with pytest.raises(ValueError, match="five batch sizes at least, and 4"):
        find_knee({1: [1.0], 2: [1.0], 4: [2.0], 8: [4.0]})
