"""E6. Each remedy that people use against outliers answers them: less error in what a layer computes.

Timed: preparing each remedy for one layer's projections (quantizing, calibrating), and the products of the layer's
activations with what it made; the remedies take turns within a run. Calibrated on the book outside the stretch on
which the error is read, in float32. 8 bits: weights and activations both; plain has one scale for a tensor. 4 bits:
weights alone. Exact: AWQ is no worse than plain rounding on what it was calibrated on, which it tries first.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median

import torch

from bench_utils import pictures
from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.gptq import gptq, hessian
from bench_utils.inference.kernel_choice import choose
from bench_utils.inference.kernels import INT8_TOKEN, quantize_tokens
from bench_utils.inference.outliers import layer_looked_at
from bench_utils.inference.projections import Readers, layer_readers
from bench_utils.inference.quantizers import INT4_ASYMMETRIC, INT4_ROW, INT4_TENSOR, INT8_ROW, Scheme, quantize
from bench_utils.inference.remedies import (
    Int8Weight,
    awq_scales,
    awq_weight,
    mixed_product,
    quantize_whole,
    smoothing_scales,
)
from bench_utils.measure.sampler import Budget
from bench_utils.models import loading, prompts

Product = Callable[[torch.Tensor], torch.Tensor]
# Makes the product (T, K) to (T, N) of each projection, calibrated on the readers' activations.
Remedy = Callable[[Readers], list[Product]]

EIGHT, FOUR = "8 bits", "4 bits"
PLAIN = "plain"
GROUPED = INT4_ASYMMETRIC
# The error is read on the first tokens of the book, which part E1 scores; calibration takes others, far behind.
NUM_SCORED, NUM_CALIBRATION, CALIBRATION_SEED = 512, (4, 512), 60
# AWQ tries its scales on so many of the calibration tokens, as its authors do with few.
AWQ_STRIDE = 4


def plain8(readers: Readers) -> list[Product]:
    weights = [Int8Weight.of(weight, per_row=False) for weight in readers.weights]
    return [lambda x, weight=weight: weight.multiply(*quantize_whole(x)) for weight in weights]


def per_channel8(readers: Readers) -> list[Product]:
    weights = [Int8Weight.of(weight, per_row=True) for weight in readers.weights]
    return [lambda x, weight=weight: weight.multiply(*quantize_tokens(x)) for weight in weights]


def llm_int8(readers: Readers) -> list[Product]:
    weights = [Int8Weight.of(weight, per_row=True) for weight in readers.weights]
    return [lambda x, weight=weight: mixed_product(x, weight) for weight in weights]


def smooth_quant(readers: Readers) -> list[Product]:
    if not readers.follows_norm:  # nothing there can take up the scale
        return plain8(readers)
    scales = smoothing_scales(readers.activations, readers.weights)
    smoothed = plain8(replace(readers, weights=tuple(weight * scales for weight in readers.weights)))
    return [lambda x, product=product: product(x / scales) for product in smoothed]


def rounded(scheme: Scheme) -> Remedy:
    def prepare(readers: Readers) -> list[Product]:
        return _dense([quantize(weight, scheme).dequantize() for weight in readers.weights])

    return prepare


def awq(readers: Readers) -> list[Product]:
    scales, _ = awq_scales(readers.activations[::AWQ_STRIDE], readers.weights, GROUPED)
    return _dense([awq_weight(weight, scales, GROUPED) for weight in readers.weights])


def by_gptq(*, in_order: bool) -> Remedy:
    def prepare(readers: Readers) -> list[Product]:
        second = hessian(readers.activations)
        return _dense([gptq(weight, second, GROUPED, in_order=in_order) for weight in readers.weights])

    return prepare


def _dense(weights: list[torch.Tensor]) -> list[Product]:
    return [lambda x, weight=weight: x @ weight.t() for weight in weights]


GROUPS, AWQ, GPTQ, GPTQ_ORDERED = "groups of 128", "AWQ", "GPTQ", "GPTQ, most active first"
REMEDIES: dict[str, dict[str, Remedy]] = {
    EIGHT: {
        PLAIN: plain8,
        "per-channel scales": per_channel8,
        "LLM.int8()": llm_int8,
        "SmoothQuant": smooth_quant,
        "weight-only": rounded(INT8_ROW),
    },
    FOUR: {
        PLAIN: rounded(INT4_TENSOR),
        "per-channel scales": rounded(INT4_ROW),
        GROUPS: rounded(GROUPED),
        AWQ: awq,
        GPTQ: by_gptq(in_order=True),
        GPTQ_ORDERED: by_gptq(in_order=False),
    },
}


class ClaimRemedies(Claim):
    id = "E6"
    title = "each remedy answers the outliers"

    param_names = ["bits"]
    params = [[EIGHT, FOUR]]

    def setup(self, bits):
        loaded = loading.load_float32(self.lab.settings)
        if loaded.identity.is_random:
            self.not_applicable("random weights have learned no outliers")
        choice = choose(INT8_TOKEN, self.lab.placement.device.type, torch.float32)
        if bits == EIGHT and choice.kernel is None:
            self.not_applicable(choice.lacks)
        layer = layer_looked_at(len(loaded.model.get_decoder().layers)) - 1
        batch, num_tokens = (1, NUM_CALIBRATION[1]) if self.lab.settings.is_quick else NUM_CALIBRATION
        calibration = prompts.prompt_ids(loaded, num_tokens, batch=batch, seed=CALIBRATION_SEED)
        self.calibrated = layer_readers(loaded.model, calibration, layer)
        self.scored = layer_readers(loaded.model, prompts.prompt_ids(loaded, NUM_SCORED), layer)
        self.layer = layer

    @torch.inference_mode()
    def run(self, bits):
        products = {}
        for name, remedy in REMEDIES[bits].items():
            with self.lab.laps.lap(f"{name}: prepare"):
                prepared = [remedy(readers) for readers in self.calibrated]
            with self.lab.laps.lap(f"{name}: products"):
                products[name] = [
                    [product(scored.activations) for product in own]
                    for own, scored in zip(prepared, self.scored, strict=True)
                ]
        return products

    @torch.inference_mode()
    def check(self, output, bits):
        for name, groups in output.items():
            assert all(bool(each.isfinite().all()) for group in groups for each in group), f"{name} is not finite"
        if bits == FOUR:
            for readers in self.calibrated:
                seen = replace(readers, activations=readers.activations[::AWQ_STRIDE])
                tried, plain = (loss_of(remedy, seen) for remedy in (awq_of_seen, rounded(GROUPED)))
                assert tried <= plain * (1 + 1e-6), f"{readers.name}: AWQ loses {tried:.6g}, rounding {plain:.6g}"

    def counters(self, output, bits) -> Mapping[str, float]:
        self.errors = {name: self._errors(groups) for name, groups in output.items()}
        means = {f"error, {name}": mean(each.values()) for name, each in self.errors.items()}
        return {"layer": self.layer + 1, "num_calibration": len(self.calibrated[0].activations), **means}

    def _errors(self, groups) -> dict[str, float]:
        """|X W^T - Y| / |X W^T| of what each reads, its projections together."""
        found = {}
        for own, scored in zip(groups, self.scored, strict=True):
            exact = torch.cat([scored.activations @ weight.t() for weight in scored.weights], dim=1)
            found[scored.name] = float((torch.cat(own, dim=1) - exact).norm() / exact.norm())
        return found

    def notes(self, output, bits) -> Mapping[str, str]:
        return {f"errors, {name}": json.dumps(each) for name, each in self.errors.items()}

    def budget(self, default: Budget) -> Budget:
        return replace(default, min_samples=3, floor_samples=3)

    def teardown(self, bits):
        self.calibrated = self.scored = []

    def verdict(self, results: Results) -> Verdict:
        measured = {bits: results[(bits,)] for (bits,) in results.usable()}
        results.samples_s(*min(results.usable()))
        errors = {}
        for bits, found in measured.items():
            errors[bits] = {name: found.counters[f"error, {name}"] for name in REMEDIES[bits]}
        wrong = [
            f"{bits}: {worse} {by_name[worse]:.4f}, {better} {by_name[better]:.4f}"
            for bits, by_name in errors.items()
            for worse, better in order_of(bits)
            if by_name[better] >= by_name[worse]
        ]
        words = [
            f"{bits}: error " + ", ".join(f"{error:.4f} {name}" for name, error in by_name.items())
            for bits, by_name in errors.items()
        ]
        figures = {}
        if EIGHT in measured:
            cost = results.paired_ratio("LLM.int8(): products", f"{PLAIN}: products", EIGHT)
            words.append(f"LLM.int8()'s products take {cost.format('.2f', 'x')} plain's time")
            figures["llm_int8_cost"] = cost
        return Verdict(
            Outcome.DOES_NOT_HOLD if wrong else Outcome.HOLDS,
            measured="; ".join(words),
            reason="; ".join(wrong),
            picture=draw(results),
            figures=figures,
        )


def awq_of_seen(readers: Readers) -> list[Product]:
    """AWQ, calibrated on all that it is given."""
    scales, _ = awq_scales(readers.activations, readers.weights, GROUPED)
    return _dense([awq_weight(weight, scales, GROUPED) for weight in readers.weights])


def loss_of(remedy: Remedy, readers: Readers) -> float:
    """The squared error of all products on what the remedy was calibrated on."""
    products = zip(remedy(readers), readers.weights, strict=True)
    x = readers.activations
    return sum(float((product(x) - x @ weight.t()).square().sum()) for product, weight in products)


def order_of(bits: str) -> list[tuple[str, str]]:
    """(worse, better): every remedy against plain, and of 4 bits what each adds to the one before it."""
    if bits == EIGHT:
        return [(PLAIN, name) for name in REMEDIES[bits] if name != PLAIN]
    beyond_rounding = [(GROUPS, name) for name in (AWQ, GPTQ, GPTQ_ORDERED)]
    return [*pairwise([PLAIN, "per-channel scales", GROUPS]), *beyond_rounding]


def draw(results: Results) -> str:
    """A row a remedy: its error in what each projection gives, and what it costs."""
    rows, header = [], []
    for (bits,), found in results.usable().items():
        for name in REMEDIES[bits]:
            errors = json.loads(found.notes[f"errors, {name}"])
            header = [f"layer {found.counters['layer']}, error of", *errors, "prepare s", "products ms"]
            laps = [median(found.laps[f"{name}: {lap}"].samples_s) for lap in ("prepare", "products")]
            cells = [f"{error:.4f}" for error in errors.values()]
            rows.append([f"{bits} {name}", *cells, f"{laps[0]:.2f}", f"{laps[1] * 1e3:.1f}"])
    return pictures.table(header, rows)
