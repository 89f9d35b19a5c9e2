"""The distribution that is sampled, and that draws follow it."""

import pytest
import torch

from bench_utils.inference.sampling import Chooser, Sampling, probabilities


def test_the_sampled_distribution_is_the_tempered_top_k():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    found = probabilities(logits, Sampling(temperature=2.0, top_k=2))
    assert found.tolist() == pytest.approx(
        [1 / (1 + 2.718281828**-0.5), 1 / (1 + 2.718281828**0.5), 0, 0], abs=1e-6
    )


def test_draws_follow_the_distribution():
    """4,000 draws at p = 0.731: six standard errors either way, missed with a probability of 2e-9."""
    chooser = Chooser(Sampling(temperature=1.0, seed=3))
    drawn = [chooser.choose(torch.tensor([1.0, 0.0])) for _ in range(4_000)]
    assert drawn.count(0) / 4_000 == pytest.approx(0.731, abs=6 * (0.731 * 0.269 / 4_000) ** 0.5)


def test_the_k_largest_are_k_where_logits_tie():
    found = probabilities(torch.tensor([1.0, 1.0, 1.0, 0.0]), Sampling(temperature=1.0, top_k=1))
    assert sorted(found.tolist()) == [0.0, 0.0, 0.0, 1.0]
