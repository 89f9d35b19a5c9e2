"""D5. A product with a quantized weight is faster where the product is bound by memory: with few tokens.

Timed: products of M tokens with the model's own matrices, shape by shape, each format in turn within one run. A
lap goes over several matrices of a shape, and a run over more bytes than a cache holds, so weights stream from
memory as they do in a model. Not timed: quantizing and laying out. Exact: no product is farther from the
dequantized one than rounding allows, and one of 8-bit activations no farther than half a step of theirs.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch.nn import functional

from bench_utils import pictures
from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict, Work
from bench_utils.devices import demand_memory
from bench_utils.inference.kernel_choice import choose, lay_out
from bench_utils.inference.kernels import FORMATS, INT4, INT8, Format, quantize_tokens
from bench_utils.inference.projections import projections
from bench_utils.measure import statistics
from bench_utils.measure.measurement import Lap
from bench_utils.measure.statistics import Interval
from bench_utils.models import loading
from bench_utils.verdict import above, all_of

DENSE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Matrices of a shape are taken until they hold so much in float32; at least one.
GROUP_BYTES = 32 * 2**20
# What is laid out at once, and the check's float64 of one of them, in the matrices' float32 bytes.
COPIES = 6
NUM_TOKENS = [1, 8, 32, 64]
FEWEST = NUM_TOKENS[0]


@dataclass
class Arm:
    """One format of one shape: its products, what it keeps, and what its last weight (N, K) stands for."""

    multiply: list[Callable[[torch.Tensor], torch.Tensor]]
    x: torch.Tensor
    num_bytes: int
    kernel: str
    format: Format | None
    stands_for: Callable[[], torch.Tensor]


class ClaimMatmul(Claim):
    id = "D5"
    title = "a quantized product is faster where memory bounds it"
    tracked = {"macs": "MACs"}

    param_names = ["num_tokens"]
    params = [NUM_TOKENS]

    def skip_reason(self, num_tokens) -> str:
        return "full profile only" if self.lab.settings.is_quick and num_tokens not in (FEWEST, 32) else ""

    @torch.inference_mode()
    def setup(self, num_tokens):
        loaded = loading.load_float32(self.lab.settings)
        self.groups = shapes_of(loaded.model)
        taken = sum(weight.nbytes for group in self.groups.values() for weight in group)
        demand_memory(COPIES * taken, self.lab.placement.device, "the matrices in all formats")
        self.lacking = {}
        self.arms = {shape: self._arms(group, num_tokens) for shape, group in self.groups.items()}

    def _arms(self, weights, num_tokens) -> dict[str, Arm]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(num_tokens, weights[0].shape[1], generator=generator).to(weights[0].device)
        arms = {}
        for name, dtype in DENSE.items():
            dense = [weight.to(dtype) for weight in weights]
            products = [lambda x, weight=weight: functional.linear(x, weight) for weight in dense]
            size = sum(weight.nbytes for weight in dense)
            arms[name] = Arm(products, x.to(dtype), size, "torch linear", None, partial(_last, dense))
        for name, form in FORMATS.items():
            dtype = self._activations(form)
            if dtype is None:
                continue
            laid_out = [lay_out(weight, form, dtype, "a matrix") for weight in weights]
            kernels = [kernel for kernel, _ in laid_out]
            packed = laid_out[-1][1]
            padded = functional.pad(x, (0, packed.shape[1] - x.shape[1])).to(dtype)
            size = sum(kernel.num_bytes for kernel in kernels)
            arms[name] = Arm(kernels, padded, size, kernels[-1].name, form, packed.dequantize)
        return arms

    def _activations(self, form: Format) -> torch.dtype | None:
        """The dtype in which a format's kernel runs here, the run's own first; None: in none."""
        device = self.lab.placement.device.type
        for dtype in dict.fromkeys([self.lab.placement.dtype, *DENSE.values()]):
            if dtype in DENSE.values() and choose(form, device, dtype).kernel is not None:
                return dtype
        self.lacking[form.name] = choose(form, device, torch.bfloat16).lacks
        return None

    @torch.inference_mode()
    def run(self, num_tokens):
        products = {}
        for shape, arms in self.arms.items():
            for name, arm in arms.items():
                with self.lab.laps.lap(lap_of(name, shape)):
                    for multiply in arm.multiply:
                        product = multiply(arm.x)
                products[lap_of(name, shape)] = product
        return products

    def check(self, output, num_tokens):
        self.errors = defaultdict(list)
        for shape, arms in self.arms.items():
            for name, arm in arms.items():
                found = output[lap_of(name, shape)].cpu().double()
                exact, allowed, of_norm = expected(arm)
                off = (found - exact).abs()
                farthest = float((off / allowed.clamp(min=torch.finfo(torch.float64).tiny)).max())
                assert bool((off <= allowed).all()), f"{name}, {shape}: {farthest:.2f} times the error of rounding"
                relative = float(off.norm() / exact.norm())
                assert relative <= of_norm, (
                    f"{name}, {shape}: the products are {relative:.2g} off, not {of_norm:.2g}"
                )
                self.errors[name].append(relative)

    def counters(self, output, num_tokens) -> Mapping[str, int | float]:
        counted = {
            "macs": sum(num_tokens * math.prod(shape) * len(group) for shape, group in self.groups.items()),
            "num_matrices": sum(map(len, self.groups.values())),
        }
        for name, errors in self.errors.items():
            counted[f"bytes, {name}"] = sum(arms[name].num_bytes for arms in self.arms.values())
            counted[f"error, {name}"] = max(errors)
        return counted

    def notes(self, output, num_tokens) -> Mapping[str, str]:
        ran = {f"kernel, {name}": arm.kernel for arms in self.arms.values() for name, arm in arms.items()}
        return ran | {f"not run, {name}": reason for name, reason in self.lacking.items()}

    def lap_work(self, output, num_tokens) -> Mapping[str, Work]:
        together = sum(arm.num_bytes for arms in self.arms.values() for arm in arms.values())
        works = {}
        for shape, arms in self.arms.items():
            for name, arm in arms.items():
                macs = num_tokens * math.prod(shape) * len(arm.multiply)
                # 8-bit integers are multiplied at a peak that is not measured.
                dtype = "int8" if arm.format and arm.format.activations else str(arm.x.dtype).removeprefix("torch.")
                works[lap_of(name, shape)] = Work(arm.num_bytes, macs, together, dtype)
        return works

    def teardown(self, num_tokens):
        self.arms, self.groups = {}, {}

    def verdict(self, results: Results) -> Verdict:
        fewest = results[(FEWEST,)]
        results.samples_s(FEWEST)
        shapes = {lap.split(" | ")[1] for lap in fewest.laps}
        formats = [name.removeprefix("bytes, ") for name in fewest.counters if name.startswith("bytes, ")]
        counts = sorted(num for (num,) in results.usable())
        fastest = {num: min(DENSE, key=lambda name: seconds(results, name, shapes, num)) for num in counts}
        gains = {
            name: {num: gain_over(results, fastest[num], name, shapes, num) for num in counts} for name in formats
        }
        judged = {form.name: gains[form.name][FEWEST] for form in (INT8, INT4) if form.name in gains}
        of_quantized = {name: each for name, each in gains.items() if name not in DENSE}
        own = ", ".join(f"{each[FEWEST].format('.2f', 'x')} {name}" for name, each in of_quantized.items())
        others = ", ".join(
            f"{1 / gains[name][FEWEST].value:.2f}x {name}'s" for name in DENSE if name != fastest[FEWEST]
        )
        slower = [name for name, gain in judged.items() if not gain.low > 1]
        return Verdict(
            all_of([above(gain, 1.0) for gain in judged.values()]) if judged else Outcome.NOT_APPLICABLE,
            measured=f"{FEWEST} token, against {fastest[FEWEST]}, the fastest dense ({others} speed): {own}; pays "
            + ", ".join(f"{name} {break_even(each)}" for name, each in of_quantized.items()),
            bound="; ".join(f"{name}: {bound_of(results, name, shapes)}" for name in (fastest[FEWEST], *judged)),
            reason=f"not faster than {fastest[FEWEST]}: {', '.join(slower)}" if slower else "",
            picture=draw(results, gains, fastest, shapes),
            figures={f"gain_{name}_{num}": gain for name, each in gains.items() for num, gain in each.items()},
        )


def _last(weights: list[torch.Tensor]) -> torch.Tensor:
    return weights[-1]


def lap_of(name: str, shape: tuple[int, int]) -> str:
    """'int8 | 576x576'."""
    return f"{name} | {shape[0]}x{shape[1]}"


def shapes_of(model) -> dict[tuple[int, int], list[torch.Tensor]]:
    """The model's matrices (N, K) by shape, the head's too, as many as GROUP_BYTES allows."""
    groups = defaultdict(list)
    head = model.get_output_embeddings()
    for weight in [
        *(weight for _, weight in projections(model)),
        *([] if head is None else [head.weight.detach()]),
    ]:
        group = groups[tuple(weight.shape)]
        if not group or sum(each.nbytes for each in group) + weight.nbytes <= GROUP_BYTES:
            group.append(weight)
    return dict(groups)


def expected(arm: Arm) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The product (M, N) of what the weight stands for; the most that each may be off, and that their norm may.

    In float64. The result is rounded once, each weight at most once, and sums are in float32. Activations with a
    scale a token are quantized as the kernel has them, by half a step each at most; those with one scale are the
    library's own affair: each may be off by half of its step, (max - min) / 255, by 1 / sqrt(12) of it in the mean.
    """
    x, weight = arm.x.cpu().double(), arm.stands_for().cpu().double()
    spacing, of_sums = torch.finfo(arm.x.dtype).eps, torch.finfo(torch.float32).eps
    activations, of_activations, in_mean = arm.format and arm.format.activations, 0.0, 0.0
    if activations == "token":
        codes, scales = quantize_tokens(arm.x)
        kept = codes.cpu().double() * scales.cpu().double()
        steps = float(((kept - x).abs() / scales.cpu().double()).max())
        assert steps <= 0.5 + 127 * of_sums, f"an activation is off by {steps:.2f} steps of its token's scale"
        x = kept
    elif activations == "tensor":
        step = float(x.max().clamp(min=0) - x.min().clamp(max=0)) / 255
        of_activations = step / 2 * (1 + 2 * spacing) * weight.abs().sum(1)
        in_mean = step / math.sqrt(12) * math.sqrt(len(x)) * float(weight.norm())
    exact = x @ weight.t()
    allowed = (2 * spacing + of_sums * x.shape[1]) * (x.abs() @ weight.abs().t()) + of_activations
    # Rounding errors fall either way: they add up as the root of their number. Of one token, half as much again.
    of_norm = spacing + of_sums * math.sqrt(x.shape[1]) + 1.5 * in_mean / float(exact.norm())
    return exact, allowed, of_norm


def seconds(results: Results, name: str, shapes, num_tokens: int) -> float:
    """What a format takes over all shapes, in the median."""
    return sum(median(results.lap_s(f"{name} | {shape}", num_tokens)) for shape in shapes)


def gain_over(results: Results, dense: str, name: str, shapes, num_tokens: int) -> Interval:
    """How many times faster a format is than the dense one, over all shapes, run by run."""
    both = []
    for each in (dense, name):
        laps = [results.lap_by_run_s(f"{each} | {shape}", num_tokens) for shape in shapes]
        both.append([sum(run) for run in zip(*laps, strict=True)])
    return statistics.median([a / b for a, b in zip(*both, strict=True)])


def break_even(gains: Mapping[int, Interval]) -> str:
    """Up to how many tokens a format pays, between those measured by the straight line in logarithms."""
    counts = sorted(gains)
    paying = [num for num in counts if gains[num].value > 1]
    if not paying:
        return "never"
    last = paying[-1]
    if last == counts[-1]:
        return f"to {last} tokens or more"
    after = counts[counts.index(last) + 1]
    high, low = math.log(gains[last].value), math.log(gains[after].value)
    return f"to {last * (after / last) ** (high / (high - low)):.0f} tokens"


def bound_of(results: Results, name: str, shapes) -> str:
    """What bounds a format with the fewest tokens: its share of the bandwidth over all shapes."""
    share = share_of([results[(FEWEST,)].laps[f"{name} | {shape}"] for shape in shapes])
    return (
        "not assessed"
        if share is None
        else f"{'memory' if share >= 0.5 else 'overhead'} ({share:.0%} of bandwidth)"
    )


def share_of(laps: Sequence[Lap]) -> float | None:
    """The share of the memory bandwidth over several laps, each as long as it takes; None where it is not known."""
    taken = [median(lap.samples_s) for lap in laps]
    shares = [None if lap.bound is None else lap.bound.share_of_bandwidth for lap in laps]
    if any(share is None for share in shares):
        return None
    return sum(share * each for share, each in zip(shares, taken, strict=True)) / sum(taken)


def draw(results: Results, gains, fastest: Mapping[int, str], shapes) -> str:
    """A row a format: GB/s of weights, their share of the bandwidth, and the gain over the fastest dense one."""
    first = results[(FEWEST,)]
    rows = []
    for name in gains:
        cells = []
        for num in fastest:
            found = results[(num,)]
            share = share_of([found.laps[f"{name} | {shape}"] for shape in shapes])
            rate = found.counters[f"bytes, {name}"] / seconds(results, name, shapes, num)
            shown = "" if share is None else f"{share:.0%}"
            cells.append(f"{rate / 1e9:.1f} {shown:>4} {gains[name][num].value:.2f}x")
        rows.append([name, *cells, f"{first.counters[f'error, {name}']:.1e}", first.notes[f"kernel, {name}"]])
    header = ["format", *(f"M = {num}" for num in fastest), "error", "kernel"]
    return (
        "GB/s of weights, their share of the memory bandwidth, and the gain over the fastest dense product; "
        "all shapes together\n" + pictures.table(header, rows)
    )
