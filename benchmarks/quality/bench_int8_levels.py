"""E5. One scale for a whole activation tensor leaves most of int8's levels unused.

Nothing is timed. The residual stream after one layer for a prompt of 84 tokens, quantized with one scale: the
levels used, those that single dimensions get, and the same without the four dimensions that reach farthest.
"""

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference.outliers import (
    int8_scale,
    layer_looked_at,
    maxima,
    num_levels,
    residual_stream,
    without_largest,
)
from bench_utils.models import facts, loading, prompts

NUM_PROMPT = 84
NUM_LEVELS, NUM_EXCLUDED = 256, 4
WHOLE, EXCLUDED = "all dimensions", "without the top 4"
# Dimensions to look at, by how many of a hundred reach less far.
LOOKED_AT = (90, 50, 20)


class ClaimInt8Levels(Claim):
    id = "E5"
    title = "one scale for a tensor leaves most int8 levels unused"
    chapter = "14 of 256 levels, scale 12.44; three dimensions get 1; without the top 4 22x smaller"
    stated = Stated(counters={(WHOLE,): {"levels_used": 14, "scale": 12.4378}, (EXCLUDED,): {"scale": 0.5749}})
    timed = False
    tracked = {"scale": "magnitude"}

    param_names = ["dimensions"]
    params = [[WHOLE, EXCLUDED]]

    def setup(self, dimensions):
        self.loaded = loading.load_float32(self.lab.settings)
        if self.loaded.identity.is_random:
            self.not_applicable("random weights have learned no outliers")
        facts.cache_shape(self.loaded.config)  # only a decoder whose layers are known
        self.ids = prompts.prompt_ids(self.loaded, NUM_PROMPT)

    def run(self, dimensions):
        stream = residual_stream(self.loaded.model, self.ids)
        layer = stream[layer_looked_at(len(stream)) - 1]  # (T, hidden)
        kept = layer if dimensions == WHOLE else without_largest(layer, NUM_EXCLUDED)
        return layer, kept, int8_scale(kept)

    def check(self, output, dimensions):
        _, kept, scale = output
        used = num_levels(kept, scale)
        assert 2 <= used <= NUM_LEVELS - 1, f"{used} levels: symmetric int8 has {NUM_LEVELS - 1}"
        assert float((kept / scale).abs().max()) <= 127 * (1 + 1e-6), "the scale does not reach the largest"

    def counters(self, output, dimensions) -> Mapping[str, float]:
        layer, kept, scale = output
        reached = maxima(layer)
        order = reached.argsort()
        counted = {"scale": scale, "levels_used": num_levels(kept, scale)}
        for share in LOOKED_AT:
            dimension = int(order[len(order) * share // 100])
            counted |= {
                f"dimension_{share}": dimension,
                f"reached_{share}": float(reached[dimension]),
                f"levels_{share}": num_levels(layer[:, dimension], scale),
            }
        return counted

    def teardown(self, dimensions):
        self.loaded = None

    def verdict(self, results: Results) -> Verdict:
        whole, excluded = (results[(name,)].counters for name in (WHOLE, EXCLUDED))
        smaller = whole["scale"] / excluded["scale"]
        single = ", ".join(
            f"{whole[f'dimension_{share}']} (to {whole[f'reached_{share}']:.2f}): {whole[f'levels_{share}']} and "
            f"{excluded[f'levels_{share}']}"
            for share in LOOKED_AT
        )
        return Verdict(
            Outcome.HOLDS if whole["levels_used"] < NUM_LEVELS / 2 and smaller > 1 else Outcome.DOES_NOT_HOLD,
            measured=f"{whole['levels_used']} of {NUM_LEVELS} levels at scale {whole['scale']:.4g}; without the "
            f"top {NUM_EXCLUDED} the scale is {smaller:.1f}x smaller ({excluded['scale']:.4g}), with "
            f"{excluded['levels_used']} levels; before and after, dimensions get {single}",
        )
