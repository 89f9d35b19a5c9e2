"""D4. A few weights set the scale of a whole matrix.

Nothing is timed. Of every projection: its largest weight in standard deviations, and how many weights lie beyond
six of them. Of normal weights as many as these, the largest would lie at five or so, and none beyond six.
"""

from typing import NamedTuple

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.projections import projections
from bench_utils.models import loading

NUM_SIGMAS = 6
# Fewer than one in a hundred weights is a few.
FEW = 0.01


class Spread(NamedTuple):
    """A projection's weights: standard deviation, largest magnitude, and how many lie far out."""

    rows: int
    columns: int
    std: float
    largest: float
    num_beyond: int

    @property
    def largest_in_sigmas(self) -> float:
        return self.largest / self.std


class ClaimWeightOutliers(Claim):
    id = "D4"
    title = "a few weights set the scale"
    chapter = "layer 12 down_proj: max/std 24.1; 692 of 4,358,144 beyond 6 sigma"
    timed = False
    tracked = {"num_beyond": "weights"}

    param_names = ["num_sigmas"]
    params = [[NUM_SIGMAS]]

    def setup(self, num_sigmas):
        loaded = loading.load_float32(self.lab.settings)
        if loaded.identity.is_random:
            self.not_applicable("random weights are as normal as they were drawn")
        self.model = loaded.model

    @torch.inference_mode()
    def run(self, num_sigmas):
        return {name: spread_of(weight, num_sigmas) for name, weight in projections(self.model)}

    def check(self, output, num_sigmas):
        for name, found in output.items():
            # Chebyshev: at most 1/k^2 of any numbers lie k standard deviations from their mean.
            most = found.rows * found.columns / num_sigmas**2
            assert found.num_beyond <= most, (
                f"{name}: {found.num_beyond:,} weights beyond, {most:,.0f} are possible"
            )

    def counters(self, output, num_sigmas) -> Mapping[str, float]:
        worst = output[worst_of(output)]
        return {
            "num_projections": len(output),
            "num_beyond": sum(found.num_beyond for found in output.values()),
            "num_weights": sum(found.rows * found.columns for found in output.values()),
            "num_with_any": sum(found.num_beyond > 0 for found in output.values()),
            "worst_in_sigmas": worst.largest_in_sigmas,
            "worst_beyond": worst.num_beyond,
            "worst_weights": worst.rows * worst.columns,
        }

    def notes(self, output, num_sigmas) -> Mapping[str, str]:
        return {"worst": worst_of(output)}

    def teardown(self, num_sigmas):
        self.model = None

    def verdict(self, results: Results) -> Verdict:
        found = results[(NUM_SIGMAS,)]
        counted = found.counters
        holds = counted["worst_in_sigmas"] > NUM_SIGMAS and counted["worst_beyond"] < FEW * counted["worst_weights"]
        return Verdict(
            Outcome.HOLDS if holds else Outcome.DOES_NOT_HOLD,
            measured=f"{found.notes['worst']}: max/std {counted['worst_in_sigmas']:.1f}, "
            f"{counted['worst_beyond']:,} of {counted['worst_weights']:,} beyond {NUM_SIGMAS} sigma; all together "
            f"{counted['num_beyond']:,} of {counted['num_weights']:,}, in {counted['num_with_any']} of "
            f"{counted['num_projections']}",
        )


def spread_of(weight: torch.Tensor, num_sigmas: int) -> Spread:
    """The spread of a weight (N, K)."""
    std = float(weight.std())
    beyond = int(((weight - weight.mean()).abs() > num_sigmas * std).sum())
    return Spread(*weight.shape, std, float(weight.abs().max()), beyond)


def worst_of(spreads: Mapping[str, Spread]) -> str:
    """The projection whose largest weight lies farthest out."""
    return max(spreads, key=lambda name: spreads[name].largest_in_sigmas)
