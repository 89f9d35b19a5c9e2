"""S3. The embedded model is ready in 2 s, from the safetensors that its GGUF file was converted to once.

Timed: from the file, in the system's cache, mapped, to a float32 model on the CPU. Not timed: importing, converting
(which de-quantizes for ten seconds).
"""

import torch

from bench_utils.claim import Claim, Results, Verdict
from bench_utils.devices import Placement
from bench_utils.models import loading, sources
from bench_utils.verdict import at_most

MAPPED = "mapped safetensors"
READY_S = 2.0


class ClaimModelReady(Claim):
    id = "S3"
    title = "the embedded model is ready in 2 s"

    param_names = ["arm"]
    params = [[MAPPED]]

    def skip_reason(self, arm) -> str:
        if not sources.is_embedded_at_hand():
            return "the embedded model is not here, and is not fetched for this: `claims fetch`"
        return ""

    def setup(self, arm):
        self.folder = sources.embedded_folder()

    def run(self, arm):
        return loading.from_safetensors(self.folder, Placement(torch.device("cpu"), torch.float32, ""), "smollm2")

    def check(self, output, arm):
        num_parameters = sum(p.numel() for p in output.parameters())
        assert num_parameters == 134_515_008, f"{num_parameters:,} parameters"

    def verdict(self, results: Results) -> Verdict:
        ready = results.median_s(MAPPED)
        return Verdict(
            at_most(ready, READY_S), measured=f"ready in {ready.format('.2f', ' s')}", figures={"ready_s": ready}
        )
