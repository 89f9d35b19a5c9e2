"""E1. Int8 per row costs no quality; at 4 bits granularity decides, and one scale per tensor destroys the model.

Nothing is timed. The same model with its projections as each scheme has them, in float32, scored on the same tokens
of a text; every loss is kept. What is said of two schemes is said of their losses token by token: the ratio of the
perplexities is exp of the mean paired difference. Its interval is that of the means of blocks of 64 tokens: what is
hard to read stays so for a while, and single tokens would give an interval a fifth too narrow.
"""

import json
from itertools import pairwise
from math import exp
from statistics import fmean

import torch

from bench_utils.claim import Claim, Mapping, Results, Stated, Verdict
from bench_utils.inference import llama_cpp
from bench_utils.inference.perplexity import NotFiniteError, Protocol, token_losses
from bench_utils.inference.projections import projections
from bench_utils.inference.quantized_linear import dequantized_copy
from bench_utils.inference.quantizers import INT4_GROUPS, INT4_ROW, INT4_TENSOR, INT8_ROW, INT8_TENSOR, NF4_BLOCKS
from bench_utils.measure import statistics
from bench_utils.measure.statistics import Interval
from bench_utils.models import corpus, facts, loading, sources
from bench_utils.verdict import above, all_of, at_most

REFERENCE, LLAMA_CPP = "reference", "llama.cpp"
AT_4_BITS = [INT4_TENSOR, INT4_ROW, INT4_GROUPS[128], NF4_BLOCKS[64]]
SCHEMES = {scheme.name: scheme for scheme in (INT8_TENSOR, INT8_ROW, *AT_4_BITS, INT4_GROUPS[32])}
PROTOCOL, QUICK = Protocol(), Protocol(num_tokens=512, context=256, stride=256)
# A perplexity that grew tenfold is no model of the text any more; one that grew by less than a fiftieth is free.
DESTROYED, FREE = 10.0, 1.02
BLOCK = 64
# llama.cpp makes 8-bit integers of its activations, which moves the perplexity of such a file by a hundredth.
OF_LLAMA_CPP = 1.05


class ClaimPerplexity(Claim):
    id = "E1"
    title = "int8 costs no quality, int4 by its granularity"
    chapter = "23.08; int8 row 22.96, tensor +0.5; int4 tensor 365,416,000, row 46.18, group 31.08; NF4 24.55"
    stated = Stated(
        counters={
            (REFERENCE,): {"perplexity": 23.08},
            ("int8 row",): {"perplexity": 22.96},
            ("int4 tensor",): {"perplexity": 365_416_000},
            ("int4 row",): {"perplexity": 46.18},
            ("int4 group 128",): {"perplexity": 31.08},
            ("NF4 block 64",): {"perplexity": 24.55},
        }
    )
    timed = False
    tracked = {"perplexity": "perplexity"}

    param_names = ["scheme"]
    params = [[REFERENCE, *SCHEMES, LLAMA_CPP]]

    def skip_reason(self, scheme) -> str:
        if scheme != LLAMA_CPP:
            return ""
        return llama_cpp.missing(sources.gguf_of(self.lab.settings.model))

    def setup(self, scheme):
        self.loaded = loading.load_float32(self.lab.settings)
        if self.loaded.identity.is_random:
            self.not_applicable("random weights have learned no text")
        facts.demand_dense(self.loaded.config)
        self.protocol = QUICK if self.lab.settings.is_quick else PROTOCOL
        self.corpus = corpus.read(self.lab.settings)
        self.ids = corpus.first_ids(self.loaded, self.corpus, self.protocol.num_tokens)

    @torch.inference_mode()
    def run(self, scheme):
        if scheme == LLAMA_CPP:
            return self._by_llama_cpp()
        model = self.loaded.model
        if scheme != REFERENCE:
            model = dequantized_copy(model, SCHEMES[scheme])
        try:
            return token_losses(model, self.ids, self.protocol)
        except NotFiniteError as error:
            raise NotFiniteError(f"{scheme}: {error}") from error

    def _by_llama_cpp(self):
        peer = llama_cpp.LlamaCpp(
            sources.gguf_of(self.lab.settings.model),
            max_tokens=self.protocol.context,
            num_threads=torch.get_num_threads(),
            all_logits=True,
        )
        losses = []
        for start, end, first in self.protocol.windows():
            window = self.ids[0, start:end].cpu()
            before = peer.all_logits(window.tolist())[first - start - 1 : -1].double()  # (T, V)
            losses.append(before.logsumexp(1) - before.gather(1, window[first - start :, None])[:, 0])
        return torch.cat(losses)

    def check(self, output, scheme):
        assert len(output) == self.protocol.num_scored, f"{len(output):,} losses for {self.protocol}"
        assert float(output.min()) >= 0, f"a loss of {float(output.min()):.3g}: more than certain"
        if scheme == LLAMA_CPP:
            own = exp(float((output - token_losses(self.loaded.model, self.ids, self.protocol)).mean()))
            assert 1 / OF_LLAMA_CPP < own < OF_LLAMA_CPP, f"llama.cpp has {own:.3f}x our perplexity"

    def counters(self, output, scheme) -> Mapping[str, float]:
        counted = {"perplexity": exp(float(output.mean())), "num_scored": len(output)}
        if scheme in SCHEMES:
            shapes = [tuple(weight.shape) for _, weight in projections(self.loaded.model)]
            counted["bits_per_weight"] = SCHEMES[scheme].bits_per_weight(shapes)
        return counted

    def notes(self, output, scheme) -> Mapping[str, str]:
        return {
            "protocol": str(self.protocol),
            "corpus": f"{self.corpus.name} ({self.corpus.digest})",
            "losses_nats": json.dumps([round(loss, 4) for loss in output.tolist()]),
        }

    def teardown(self, scheme):
        self.loaded = None

    def verdict(self, results: Results) -> Verdict:
        reference = losses_of(results, REFERENCE)
        found = {name: losses_of(results, name) for (name,) in results.usable() if name != REFERENCE}
        ratios = {name: ratio_of(losses, reference) for name, losses in found.items()}
        order = {
            (coarse.name, fine.name): ratio_of(losses_of(results, coarse.name), losses_of(results, fine.name))
            for coarse, fine in pairwise(AT_4_BITS)
        }
        free, destroyed = ratios[INT8_ROW.name], ratios[INT4_TENSOR.name]
        parts = [at_most(free, FREE), above(destroyed, DESTROYED), *(above(each, 1.0) for each in order.values())]
        real = [name for name, ratio in ratios.items() if not ratio.low <= 1 <= ratio.high]
        noise = [name for name in ratios if name not in real]
        undecided = [f"{a} and {b}" for (a, b), each in order.items() if each.low <= 1 <= each.high]
        perplexities = {name: results[(name,)].counters["perplexity"] for name in (REFERENCE, *found)}
        return Verdict(
            all_of(parts),
            measured=f"perplexity {perplexities[REFERENCE]:.2f} of the reference; "
            + ", ".join(f"{perplexities[name]:,.2f} {name}" for name in found)
            + f". Against the reference, real: {', '.join(real) or 'none'}; noise: {', '.join(noise) or 'none'}. "
            + f"{results[(REFERENCE,)].notes['protocol']}, {results[(REFERENCE,)].notes['corpus']}",
            reason=f"cannot be told apart: {'; '.join(undecided)}" if undecided else "",
            figures={f"{name} to the reference": ratio for name, ratio in ratios.items()},
            by_scheme={name: cells_of(results, name, ratios.get(name)) for name in perplexities},
        )


def losses_of(results: Results, scheme: str) -> list[float]:
    """Every loss of a scheme, in nats."""
    return json.loads(results[(scheme,)].notes["losses_nats"])


def ratio_of(losses: list[float], reference: list[float]) -> Interval:
    """The ratio of two perplexities on the same tokens: exp of the mean paired difference, by blocks of them."""
    differences = [a - b for a, b in zip(losses, reference, strict=True)]
    blocks = [fmean(differences[start : start + BLOCK]) for start in range(0, len(differences), BLOCK)]
    value, interval = fmean(differences), statistics.mean(blocks)
    return Interval(exp(value), exp(min(value, interval.low)), exp(max(value, interval.high)))


def cells_of(results: Results, scheme: str, ratio: Interval | None) -> dict[str, str]:
    """A scheme's cells of the common table."""
    counted = results[(scheme,)].counters
    bits = f"{counted['bits_per_weight']:.2f}" if "bits_per_weight" in counted else "-"
    to_reference = ratio.format(".3f" if ratio.value < 1_000 else ".2g", "x") if ratio else "-"
    perplexity = counted["perplexity"]
    shown = f"{perplexity:.2f}" if perplexity < 10_000 else f"{perplexity:.3g}"
    return {"bits": bits, "perplexity": shown, "to the reference": to_reference}
