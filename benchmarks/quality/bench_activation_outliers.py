"""E4. Activation outliers are a property of the model, not of its input: the same dimension, whatever the prompt.

Nothing is timed. The residual stream after every layer, for several prompts, in float32: the largest magnitude that
each dimension reaches, the dimension that reaches farthest in each layer, and the histogram of one layer's maxima.
"""

import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Any

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference.outliers import EDGES, histogram, layer_looked_at, maxima, residual_stream
from bench_utils.models import facts, loading, prompts

# Prompts as (tokens, where in the book): the chapter's length, and another.
PROMPTS = {"84 tokens": (84, 0), "84 others": (84, 3), "200 others": (200, 7)}
# "Massive" (Sun et al., arXiv 2402.17762): this many times the median dimension.
MASSIVE = 100
BAR_WIDTH = 40


@dataclass(frozen=True)
class Outliers:
    """Of one prompt: each layer's farthest dimension and how far, and every maximum of the layer that is drawn."""

    farthest: list[int]
    reached: list[float]
    largest_median: float
    drawn: torch.Tensor


class ClaimActivationOutliers(Claim):
    id = "E4"
    title = "activation outliers are the model's, not the input's"
    chapter = "dimension 62 reaches 1,579.6, the median never 1.6; same at layers 4 to 20"
    stated = Stated(counters={("84 tokens",): {"dimension": 62, "reached": 1_579.6}})
    timed = False
    tracked = {"reached": "magnitude"}

    param_names = ["prompt"]
    params = [list(PROMPTS)]

    def setup(self, prompt):
        self.loaded = loading.load_float32(self.lab.settings)
        if self.loaded.identity.is_random:
            self.not_applicable("random weights have learned no outliers")
        facts.cache_shape(self.loaded.config)  # only a decoder whose layers are known
        num_tokens, seed = PROMPTS[prompt]
        self.ids = prompts.prompt_ids(self.loaded, num_tokens, seed=seed)

    def run(self, prompt) -> Outliers:
        reached = maxima(residual_stream(self.loaded.model, self.ids))  # (L, hidden)
        return Outliers(
            farthest=reached.argmax(1).tolist(),
            reached=reached.amax(1).tolist(),
            largest_median=float(reached.median(1).values.max()),
            drawn=reached[layer_looked_at(len(reached)) - 1],
        )

    def check(self, output: Outliers, prompt):
        assert all(torch.tensor(output.reached).isfinite()), "an activation is not finite"
        counts = histogram(output.drawn)
        hidden = self.loaded.config.hidden_size
        assert sum(counts) == hidden, f"{sum(counts)} maxima in the histogram, {hidden} dimensions"

    def counters(self, output: Outliers, prompt) -> Mapping[str, float]:
        dimension, num_layers = Counter(output.farthest).most_common(1)[0]
        return {
            "dimension": dimension,
            "num_layers_there": num_layers,
            "num_layers": len(output.farthest),
            "reached": max(output.reached),
            "largest_median": output.largest_median,
        }

    def notes(self, output: Outliers, prompt) -> Mapping[str, str]:
        layer = layer_looked_at(len(output.farthest))
        return {
            "farthest_by_layer": json.dumps(output.farthest),
            "reached_by_layer": json.dumps([round(value, 2) for value in output.reached]),
            "histogram": json.dumps({"layer": layer, "edges": EDGES, "counts": histogram(output.drawn)}),
        }

    def teardown(self, prompt):
        self.loaded = None

    def verdict(self, results: Results) -> Verdict:
        found = {prompt: results[(prompt,)] for prompt in PROMPTS if (prompt,) in results.usable()}
        dimensions = {each.counters["dimension"] for each in found.values()}
        least = min(each.counters["num_layers_there"] / each.counters["num_layers"] for each in found.values())
        ratio = min(each.counters["reached"] / each.counters["largest_median"] for each in found.values())
        holds = len(dimensions) == 1 and least > 0.5 and ratio > MASSIVE and len(found) > 1
        first = next(iter(found.values()))
        reached = ", ".join(f"{each.counters['reached']:,.1f}" for each in found.values())
        medians = ", ".join(f"{each.counters['largest_median']:.1f}" for each in found.values())
        return Verdict(
            Outcome.HOLDS if holds else Outcome.INCONCLUSIVE if len(found) < 2 else Outcome.DOES_NOT_HOLD,
            measured=f"dimension {', '.join(map(str, sorted(dimensions)))} reaches {reached} for {len(found)} "
            f"prompts, the median dimension never more than {medians}; it reaches farthest in {least:.0%} of the "
            "layers or more",
            picture=draw(json.loads(first.notes["histogram"])),
        )


def draw(found: Mapping[str, Any]) -> str:
    """The histogram in text, its bars by the logarithm, so that a single dimension shows."""
    counts, edges = found["counts"], found["edges"]
    names = [f"{low:>5,} - {high:>5,}" for low, high in pairwise(edges)] + [f"{edges[-1]:>5,} -      "]
    longest = log2(1 + max(counts))
    bars = ("#" * round(BAR_WIDTH * log2(1 + count) / longest) for count in counts)
    rows = (f"  {name} | {bar:<{BAR_WIDTH}} {count}" for name, bar, count in zip(names, bars, counts, strict=True))
    return "\n".join([f"largest magnitude of each dimension after layer {found['layer']}", *rows])
