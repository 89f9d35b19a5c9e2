"""D3. NF4's gain over int4 by groups of 128 is two gains: a finer block, and levels where the weights are.

Nothing is timed. The chapter compares NF4 in blocks of 64 with int4 in groups of 128, and says that a third row
would take the two apart. Here are both missing rows: int4 in groups of 64, and NF4 in blocks of 128.
"""

from statistics import mean

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.projections import projection_errors
from bench_utils.inference.quantizers import INT4_GROUPS, NF4_BLOCKS
from bench_utils.models import loading

SCHEMES = {scheme.name: scheme for scheme in (INT4_GROUPS[128], INT4_GROUPS[64], NF4_BLOCKS[128], NF4_BLOCKS[64])}


class ClaimNf4Parts(Claim):
    id = "D3"
    title = "NF4's gain is a finer block and better levels"
    chapter = "28 % less than group 128, taken apart by two rows that it lacks"
    timed = False
    tracked = {"mean_error": "fraction"}

    param_names = ["scheme"]
    params = [list(SCHEMES)]

    def setup(self, scheme):
        self.model = loading.load_float32(self.lab.settings).model

    @torch.inference_mode()
    def run(self, scheme):
        return projection_errors(self.model, SCHEMES[scheme])

    def counters(self, output, scheme) -> Mapping[str, float]:
        return {"mean_error": mean(found.relative for found in output.values()), "num_projections": len(output)}

    def teardown(self, scheme):
        self.model = None

    def verdict(self, results: Results) -> Verdict:
        coarse, fine, coarse_nf4, fine_nf4 = (results[(name,)].counters["mean_error"] for name in SCHEMES)
        parts = {"block": 1 - fine / coarse, "levels": 1 - fine_nf4 / fine}
        both = all(part > 0 for part in (*parts.values(), 1 - coarse_nf4 / coarse, 1 - fine_nf4 / coarse_nf4))
        return Verdict(
            Outcome.HOLDS if both else Outcome.DOES_NOT_HOLD,
            measured=f"NF4 block 64 has {1 - fine_nf4 / coarse:.1%} less error than int4 group 128: "
            f"{parts['block']:.1%} by blocks of 64 ({fine:.4f}), and of what is left {parts['levels']:.1%} by the "
            f"levels ({fine_nf4:.4f}); the levels alone, at 128, {1 - coarse_nf4 / coarse:.1%} ({coarse_nf4:.4f})",
        )
