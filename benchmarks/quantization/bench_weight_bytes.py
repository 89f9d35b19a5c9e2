"""D1. Fewer bits make fewer bytes, and a scheme costs its scales besides; what stays in 16 bit stays.

Nothing is timed. Every projection is packed, its scales in 16 bit as the chapter counts them, and the bytes of the
packed tensors are summed. The rest of the model (embeddings, norms, head) is counted at 16 bit: "4-bit" is about
2.2x on the chapter's model, not 4x.
"""

import math
from dataclasses import replace

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.projections import projections
from bench_utils.inference.quantizers import INT4_GROUPS, INT8_ROW, NF4_BLOCKS, quantize
from bench_utils.models import loading
from bench_utils.models.shapes import chapter_config

PLAIN = {"float32": 4, "float16": 2}
PACKED = {
    scheme.name: replace(scheme, scale_dtype=torch.float16)
    for scheme in (INT8_ROW, INT4_GROUPS[128], NF4_BLOCKS[64], INT4_GROUPS[32])
}
GROUPED, NF4 = "int4 group 128", "NF4 block 64"
# Of the chapter's model: all parameters, and those of its 168 projections.
CHAPTER_PARAMETERS, CHAPTER_PROJECTED = 494_032_768, 357_826_560


class ClaimWeightBytes(Claim):
    id = "D1"
    title = "fewer bits, fewer bytes"
    kind = "exact"
    chapter = "1.98, 0.99, 0.49 GB at 4, 2, 1 bytes; 4.125 bits (group 128), 4.25 (NF4)"
    timed = False
    tracked = {"projection_bytes": "bytes", "model_bytes": "bytes"}

    param_names = ["format"]
    params = [[*PLAIN, *PACKED]]

    def setup(self, format):  # noqa: A002 - what the case is called
        self.model = loading.load(self.lab.settings).model
        self.shapes = [tuple(weight.shape) for _, weight in projections(self.model)]

    @torch.inference_mode()
    def run(self, format):  # noqa: A002
        if format in PLAIN:
            return sum(weight.numel() * PLAIN[format] for _, weight in projections(self.model))
        return sum(quantize(weight, PACKED[format], name).num_bytes for name, weight in projections(self.model))

    def check(self, output, format):  # noqa: A002
        if format in PLAIN:
            return
        expected = sum(PACKED[format].packed_bytes(shape) for shape in self.shapes)
        assert output == expected, f"{output:,} B packed, the formula has {expected:,}"

    def counters(self, output, format) -> Mapping[str, int | float]:  # noqa: A002
        num_projected = sum(math.prod(shape) for shape in self.shapes)
        num_others = sum(p.numel() for p in self.model.parameters()) - num_projected
        return {
            "projection_bytes": output,
            "model_bytes": output + num_others * PLAIN.get(format, PLAIN["float16"]),
            "bits_per_weight": 8 * output / num_projected,
            "num_projected": num_projected,
        }

    def verdict(self, results: Results) -> Verdict:
        found = {name: results[(name,)].counters for name in (*PLAIN, GROUPED, NF4)}
        whole = {name: found["float16"]["model_bytes"] / found[name]["model_bytes"] for name in (GROUPED, NF4)}
        chapter = chapter_ratio()
        return Verdict(
            Outcome.HOLDS,
            measured=", ".join(f"{counted['bits_per_weight']:.3f} bits {name}" for name, counted in found.items())
            + f"; the whole model is {whole[GROUPED]:.2f}x smaller than 16 bit with int4 group 128, "
            f"{whole[NF4]:.2f}x with NF4",
            predicted=f"{chapter:.2f}x on the chapter's model, not 4x",
        )


def chapter_ratio() -> float:
    """16-bit bytes of the chapter's model over those with its projections in int4 by groups of 128.

    Raises:
        AssertionError: its configuration does not have the parameters that the chapter counts.
    """
    model = loading.skeleton(chapter_config(), "the chapter")
    num_parameters = sum(p.numel() for p in model.parameters())
    shapes = [tuple(weight.shape) for _, weight in projections(model)]
    num_projected = sum(math.prod(shape) for shape in shapes)
    found = (num_parameters, num_projected)
    assert found == (CHAPTER_PARAMETERS, CHAPTER_PROJECTED), f"{found} parameters and projected ones"
    packed = sum(PACKED[GROUPED].packed_bytes(shape) for shape in shapes)
    return 2 * num_parameters / (2 * (num_parameters - num_projected) + packed)
