"""E6. Each remedy that people use against outliers answers them: less error in what a layer computes.

Timed: preparing each remedy for one layer's projections (quantizing, calibrating), and the products of the layer's
activations with what it made; the remedies take turns within a run. Calibrated on the book far from the stretch on
which the error is read, in float32. 8 bits: weights and activations both; plain has one scale for a tensor. 4 bits:
weights alone, symmetric but in the groups, whose zero is free. Exact: AWQ is no worse than plain rounding on what
it was calibrated on, which it tries first.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
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
    THRESHOLD,
    Int8Weight,
    awq_scales,
    awq_weight,
    mixed_product,
    quantize_whole,
    smoothing_scales,
)
from bench_utils.measure.sampler import Budget
from bench_utils.models import facts, loading, prompts

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a remedy made of a group of projections: a product (T, K) to (T, N) for each.

    `scales` (K,): activations come divided by them, which whatever is before the projections takes up at no cost.
    """

    products: list[Product]
    scales: torch.Tensor | None = None

    def arriving(self, x: torch.Tensor) -> torch.Tensor:
        """Activations as they come to the products."""
        return x if self.scales is None else x / self.scales


Remedy = Callable[[Readers], Prepared]

EIGHT, FOUR = "8 bits", "4 bits"
PLAIN, ROWS = "plain", "per-channel scales"
GROUPED = INT4_ASYMMETRIC
# The error is read on the first tokens of the book, which E1 scores; calibration takes others, far behind. They are
# more than the widest input has columns, or GPTQ would fit what is not there.
NUM_SCORED, NUM_CALIBRATION, CALIBRATION_SEED = 512, (4, 512), 60
# AWQ tries its scales on so many of the calibration tokens, as its authors do with few.
AWQ_STRIDE = 4


def plain8(readers: Readers) -> Prepared:
    weights = [Int8Weight.of(weight, per_row=False) for weight in readers.weights]
    return Prepared([lambda x, weight=weight: weight.multiply(*quantize_whole(x)) for weight in weights])


def per_channel8(readers: Readers) -> Prepared:
    weights = [Int8Weight.of(weight, per_row=True) for weight in readers.weights]
    return Prepared([lambda x, weight=weight: weight.multiply(*quantize_tokens(x)) for weight in weights])


def llm_int8(readers: Readers) -> Prepared:
    weights = [Int8Weight.of(weight, per_row=True) for weight in readers.weights]
    return Prepared([lambda x, weight=weight: mixed_product(x, weight) for weight in weights])


def smooth_quant(readers: Readers) -> Prepared:
    if not readers.follows_norm:  # its authors scale norms alone
        return plain8(readers)
    scales = smoothing_scales(readers.activations, readers.weights)
    smoothed = plain8(replace(readers, weights=tuple(weight * scales for weight in readers.weights)))
    return Prepared(smoothed.products, scales)


def rounded(scheme: Scheme) -> Remedy:
    def prepare(readers: Readers) -> Prepared:
        return _dense([quantize(weight, scheme).dequantize() for weight in readers.weights])

    return prepare


def awq(readers: Readers) -> Prepared:
    if not readers.is_scalable:
        return rounded(GROUPED)(readers)
    scales, _ = awq_scales(readers.activations[::AWQ_STRIDE], readers.weights, GROUPED)
    return _dense([awq_weight(weight, scales, GROUPED) for weight in readers.weights])


def by_gptq(*, in_order: bool) -> Remedy:
    def prepare(readers: Readers) -> Prepared:
        second = hessian(readers.activations)
        return _dense([gptq(weight, second, GROUPED, in_order=in_order) for weight in readers.weights])

    return prepare


def _dense(weights: list[torch.Tensor]) -> Prepared:
    return Prepared([lambda x, weight=weight: x @ weight.t() for weight in weights])


LLM_INT8, GROUPS, AWQ, GPTQ, GPTQ_ORDERED = "LLM.int8()", "groups of 128", "AWQ", "GPTQ", "GPTQ, most active first"
REMEDIES: dict[str, dict[str, Remedy]] = {
    EIGHT: {
        PLAIN: plain8,
        ROWS: per_channel8,
        LLM_INT8: llm_int8,
        "SmoothQuant": smooth_quant,
        "weight-only": rounded(INT8_ROW),
    },
    FOUR: {
        PLAIN: rounded(INT4_TENSOR),
        ROWS: rounded(INT4_ROW),
        GROUPS: rounded(GROUPED),
        AWQ: awq,
        GPTQ: by_gptq(in_order=True),
        GPTQ_ORDERED: by_gptq(in_order=False),
    },
}
# Those of 8 bits that multiply integers. The others' products are dense here: D5 times kernels for them.
OF_INTEGERS = (PLAIN, ROWS, LLM_INT8, "SmoothQuant")


class ClaimRemedies(Claim):
    id = "E6"
    title = "each remedy answers the outliers"

    param_names = ["bits"]
    params = [[EIGHT, FOUR]]

    def setup(self, bits):
        loaded = loading.load_float32(self.lab.settings)
        if loaded.identity.is_random:
            self.not_applicable("random weights have learned no outliers")
        facts.decoder_shape(loaded.config)
        choice = choose(INT8_TOKEN, self.lab.placement.device.type, torch.float32)
        if bits == EIGHT and choice.kernel is None:
            self.not_applicable(choice.lacks)
        self.layer = layer_looked_at(len(loaded.model.get_decoder().layers)) - 1
        batch, num_tokens = NUM_CALIBRATION
        calibration = prompts.prompt_ids(loaded, num_tokens, batch=batch, seed=CALIBRATION_SEED)
        self.calibrated = layer_readers(loaded.model, calibration, self.layer)
        self.scored = layer_readers(loaded.model, prompts.prompt_ids(loaded, NUM_SCORED), self.layer)

    @torch.inference_mode()
    def run(self, bits):
        """By remedy: what it prepared for each group of projections, and their products on the scored tokens."""
        made = {}
        for name, remedy in REMEDIES[bits].items():
            with self.lab.laps.lap(f"{name}: prepare"):
                prepared = [remedy(readers) for readers in self.calibrated]
            arriving = [own.arriving(scored.activations) for own, scored in zip(prepared, self.scored, strict=True)]
            with self.lab.laps.lap(f"{name}: products"):
                products = [
                    [product(x) for product in own.products] for own, x in zip(prepared, arriving, strict=True)
                ]
            made[name] = prepared, products
        return made

    @torch.inference_mode()
    def check(self, output, bits):
        self.errors = {name: self._errors(products) for name, (_, products) in output.items()}
        for name, by_group in self.errors.items():
            assert all(map(isfinite, by_group.values())), f"{name}: the error is not finite in {by_group}"
        if bits == FOUR:
            for index, readers in enumerate(self.calibrated):
                seen = replace(readers, activations=readers.activations[::AWQ_STRIDE])
                tried, plain = (loss_of(output[name][0][index], seen) for name in (AWQ, GROUPS))
                assert tried <= plain * (1 + 1e-5), f"{readers.name}: AWQ loses {tried:.6g}, rounding {plain:.6g}"

    def counters(self, output, bits) -> Mapping[str, float]:
        outliers = [(each.activations.abs() >= THRESHOLD).any(0).sum() for each in self.scored]
        return {
            "layer": self.layer + 1,
            "num_calibration": len(self.calibrated[0].activations),
            "num_outlier_inputs": int(sum(outliers)),
            "widest_input": max(each.activations.shape[1] for each in self.scored),
            **{f"error, {name}": mean(by_group.values()) for name, by_group in self.errors.items()},
        }

    def _errors(self, products) -> dict[str, float]:
        """|Y - X W^T| / |X W^T| of what each group gives, its projections together."""
        found = {}
        for own, scored in zip(products, self.scored, strict=True):
            exact = torch.cat([scored.activations @ weight.t() for weight in scored.weights], dim=1)
            found[scored.name] = float((torch.cat(own, dim=1) - exact).norm() / exact.norm())
        return found

    def notes(self, output, bits) -> Mapping[str, str]:
        return {f"errors, {name}": json.dumps(by_group) for name, by_group in self.errors.items()}

    def budget(self, default: Budget) -> Budget:
        return replace(default, min_samples=3, floor_samples=3)

    def teardown(self, bits):
        self.calibrated = self.scored = []

    def verdict(self, results: Results) -> Verdict:
        measured = {bits: results[(bits,)] for (bits,) in results.usable()}
        results.samples_s(*min(results.usable()))
        words, wrong, figures = [], [], {}
        for bits, found in measured.items():
            errors = {name: found.counters[f"error, {name}"] for name in REMEDIES[bits]}
            words.append(f"{bits}: error " + ", ".join(f"{error:.4f} {name}" for name, error in errors.items()))
            for worse, better in order_of(bits, has_outliers=found.counters["num_outlier_inputs"] > 0):
                if not errors[better] < errors[worse]:
                    wrong.append(f"{bits}: {errors[better]:.4f} {better}, {errors[worse]:.4f} {worse}")
                words += [f"{better} does harm to {name}" for name in harmed(found.notes, worse, better)]
            if found.counters["num_calibration"] < found.counters["widest_input"]:
                words.append("calibrated on fewer tokens than the widest input has columns")
        if EIGHT in measured:
            cost = results.paired_ratio(f"{LLM_INT8}: products", f"{PLAIN}: products", EIGHT)
            words.append(f"the products of {LLM_INT8} take {cost.format('.2f', 'x')} plain's time")
            figures["llm_int8_cost"] = cost
        return Verdict(
            Outcome.DOES_NOT_HOLD if wrong else Outcome.HOLDS,
            measured="; ".join(words),
            reason="; ".join(wrong),
            picture=draw(results),
            figures=figures,
        )


def loss_of(prepared: Prepared, readers: Readers) -> float:
    """The squared error of all products on the readers' activations."""
    x = readers.activations
    products = zip(prepared.products, readers.weights, strict=True)
    return sum(
        float((product(prepared.arriving(x)) - x @ weight.t()).square().sum()) for product, weight in products
    )


def order_of(bits: str, *, has_outliers: bool) -> list[tuple[str, str]]:
    """(worse, better): each remedy against what it adds to. Without outliers LLM.int8() is per-channel scales."""
    if bits == EIGHT:
        of_mixed = [(ROWS, LLM_INT8)] if has_outliers else []
        return [*((PLAIN, name) for name in REMEDIES[EIGHT] if name != PLAIN), *of_mixed]
    return [*pairwise([PLAIN, ROWS, GROUPS]), *((GROUPS, name) for name in (AWQ, GPTQ, GPTQ_ORDERED))]


def harmed(notes: Mapping[str, str], worse: str, better: str) -> list[str]:
    """The groups of projections in which the better remedy has more error after all."""
    before, after = (json.loads(notes[f"errors, {name}"]) for name in (worse, better))
    return [name for name in before if after[name] > before[name]]


def draw(results: Results) -> str:
    """A row a remedy: its error in what each projection gives, and what it costs."""
    rows, header = [], []
    for (bits,), found in results.usable().items():
        for name in REMEDIES[bits]:
            errors = json.loads(found.notes[f"errors, {name}"])
            header = [f"layer {found.counters['layer']}, error of", *errors, "prepare s", "products ms"]
            prepare_s, products_s = (
                median(found.laps[f"{name}: {lap}"].samples_s) for lap in ("prepare", "products")
            )
            products = f"{products_s * 1e3:.1f}" if bits == EIGHT and name in OF_INTEGERS else "dense"
            rows.append(
                [f"{bits} {name}", *(f"{each:.4f}" for each in errors.values()), f"{prepare_s:.2f}", products]
            )
    return pictures.table(header, rows)
