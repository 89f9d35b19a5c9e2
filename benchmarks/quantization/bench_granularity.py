"""D2. At 4 bits granularity is the whole game: the smaller the territory of a scale, the smaller the error.

Nothing is timed. Every projection is quantized, packed and read back; its error is the norm of the difference over
that of the weight, in float32 and against the weights as they are loaded. Exact: no weight is off by more than half
a step of its scale. The order of the schemes is a finding about the weights at hand: weights that lie on a grid
already, as those of a published integer file may, need not show it.
"""

from itertools import pairwise
from statistics import mean

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference.projections import projection_errors
from bench_utils.inference.quantizers import (
    INT4_GROUPS,
    INT4_ROW,
    INT4_TENSOR,
    INT8_ROW,
    INT8_TENSOR,
    NF4_BLOCKS,
    NF4_LARGEST_ERROR,
)
from bench_utils.models import loading

AT_4_BITS = [INT4_TENSOR, INT4_ROW, INT4_GROUPS[128], NF4_BLOCKS[64]]
SCHEMES = {scheme.name: scheme for scheme in (INT8_TENSOR, INT8_ROW, *AT_4_BITS)}


class ClaimGranularity(Claim):
    id = "D2"
    title = "at 4 bits granularity is the whole game"
    chapter = "worst of int4 tensor 0.99; rows divide by 3.4; group 128 0.1323; NF4 0.0952"
    stated = Stated(
        counters={
            ("int4 tensor",): {"worst_error": 0.99},
            ("int4 group 128",): {"mean_error": 0.1323},
            ("NF4 block 64",): {"mean_error": 0.0952},
        }
    )
    timed = False
    tracked = {"mean_error": "fraction", "worst_error": "fraction"}

    param_names = ["scheme"]
    params = [list(SCHEMES)]

    def setup(self, scheme):
        self.model = loading.load_float32(self.lab.settings).model

    @torch.inference_mode()
    def run(self, scheme):
        return projection_errors(self.model, SCHEMES[scheme])

    def check(self, output, scheme):
        off = max(found.steps for found in output.values())
        allowed = (NF4_LARGEST_ERROR if SCHEMES[scheme].is_nf4 else 0.5) * (1 + 1e-5)  # float32's own rounding
        assert off <= allowed, f"a weight is off by {off:.6f} steps of its scale, {allowed:.6f} are possible"

    def counters(self, output, scheme) -> Mapping[str, float]:
        relative = [found.relative for found in output.values()]
        return {"mean_error": mean(relative), "worst_error": max(relative), "num_projections": len(relative)}

    def notes(self, output, scheme) -> Mapping[str, str]:
        return {"worst": max(output, key=lambda name: output[name].relative)}

    def teardown(self, scheme):
        self.model = None

    def verdict(self, results: Results) -> Verdict:
        means = [results[(scheme.name,)].counters["mean_error"] for scheme in AT_4_BITS]
        falls = all(coarse > fine for coarse, fine in pairwise(means))
        tensor, row, group, nf4 = means
        worst = results[(INT4_TENSOR.name,)]
        shown = ", ".join(f"{m:.4f} {scheme.name}" for m, scheme in zip(means, AT_4_BITS, strict=True))
        return Verdict(
            Outcome.HOLDS if falls else Outcome.DOES_NOT_HOLD,
            measured=f"mean error {shown}; worst of int4 tensor {worst.counters['worst_error']:.3f} "
            f"({worst.notes['worst']}); rows divide by {tensor / row:.2f}, groups by {row / group:.2f} more, NF4 "
            f"has {1 - nf4 / group:.0%} less",
        )
