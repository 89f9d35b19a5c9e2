"""S3. The embedded model is ready faster from mapped safetensors than by de-quantizing its GGUF file.

Timed: from the file, in the system's cache, to a float32 model on the CPU. Not timed: importing, converting.
"""

from dataclasses import replace

import torch

from bench_utils.claim import Claim, Results, Verdict
from bench_utils.devices import Placement
from bench_utils.measure.sampler import Budget
from bench_utils.models import assets, conversion, loading, sources
from bench_utils.verdict import above, all_of, at_most

MAPPED, DEQUANTIZED = "mapped safetensors", "de-quantized GGUF"
READY_S = 2.0


class ClaimModelReady(Claim):
    id = "S3"
    title = "the embedded model is ready in 2 s"

    param_names = ["arm"]
    params = [[MAPPED, DEQUANTIZED]]

    def skip_reason(self, arm) -> str:
        if not sources.is_embedded_at_hand():
            return "the embedded model is not here, and is not fetched for this: `claims fetch`"
        return "full profile only" if arm == DEQUANTIZED and self.lab.settings.is_quick else ""

    def setup(self, arm):
        self.folder, self.gguf = sources.embedded_folder(), assets.path_of(assets.SMOLLM2)

    def run(self, arm):
        if arm == MAPPED:
            return loading.from_safetensors(
                self.folder, Placement(torch.device("cpu"), torch.float32, ""), "smollm2"
            )
        return conversion.dequantize(self.gguf)

    def check(self, output, arm):
        num_parameters = sum(p.numel() for p in output.parameters())
        assert num_parameters == 134_515_008, f"{num_parameters:,} parameters"

    def budget(self, default: Budget) -> Budget:
        # De-quantizing takes ten seconds, and is there to compare with: once will do.
        return replace(default, min_samples=3, floor_samples=1, max_time_s=5.0)

    def verdict(self, results: Results) -> Verdict:
        ready = results.median_s(MAPPED)
        outcomes = [at_most(ready, READY_S)]
        measured, figures = f"ready in {ready.format('.2f', ' s')}", {"ready_s": ready}
        if (DEQUANTIZED,) in results.usable():
            ratio = results.ratio((DEQUANTIZED,), (MAPPED,))
            outcomes.append(above(ratio, 1.0))
            measured += f"; de-quantizing takes {ratio.format('.1f', 'x')} as long"
            figures["dequantizing_over_mapping"] = ratio
        return Verdict(all_of(outcomes), measured=measured, figures=figures)
