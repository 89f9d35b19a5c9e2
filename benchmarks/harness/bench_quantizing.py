"""S6. Every projection of the default model is quantized in every scheme within 20 s, packed as it is kept.

Timed: every tenth projection in every scheme. The time is scaled by the weights that were left out, which cost the
same each.
"""

import torch

from bench_utils.claim import Claim, Mapping, Results, Verdict
from bench_utils.inference.projections import num_projected, projections
from bench_utils.inference.quantizers import SCHEMES, quantize
from bench_utils.measure.statistics import Interval
from bench_utils.models import loading
from bench_utils.verdict import at_most

LIMIT_S = 20.0
STRIDE = 10


class ClaimQuantizing(Claim):
    id = "S6"
    title = "every scheme over every projection within 20 s"
    tracked = {"packed_bytes": "bytes"}

    param_names = ["stride"]
    params = [[STRIDE]]

    def setup(self, stride):
        loaded = loading.load_float32(self.lab.settings)
        if loaded.identity.name != "smollm2":
            self.not_applicable("the promise is about the default model")
        self.num_projected = num_projected(loaded.model)
        self.weights = dict(list(projections(loaded.model))[::stride])

    @torch.inference_mode()
    def run(self, stride):
        return [quantize(each, scheme, name) for scheme in SCHEMES.values() for name, each in self.weights.items()]

    def check(self, output, stride):
        assert len(output) == len(SCHEMES) * len(self.weights), f"{len(output)} packed tensors"

    def counters(self, output, stride) -> Mapping[str, int]:
        return {
            "packed_bytes": sum(packed.num_bytes for packed in output),
            "num_weights": sum(weight.numel() for weight in self.weights.values()),
            "num_projected": self.num_projected,
        }

    def teardown(self, stride):
        self.weights = {}

    def verdict(self, results: Results) -> Verdict:
        counted, seconds = results[(STRIDE,)].counters, results.median_s(STRIDE)
        scale = counted["num_projected"] / counted["num_weights"]
        whole = Interval(seconds.value * scale, seconds.low * scale, seconds.high * scale)
        return Verdict(
            at_most(whole, LIMIT_S),
            measured=f"{whole.format('.1f', ' s')} for {len(SCHEMES)} schemes",
            figures={"seconds": whole},
        )
