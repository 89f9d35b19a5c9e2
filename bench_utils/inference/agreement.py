"""Whether two ways of computing the same tokens agree: exactly, or as nearly as rounding allows."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench_utils.devices import demand_memory
from bench_utils.inference.decode import decode_step, full_pass, prefill


@dataclass(frozen=True)
class Agreement:
    """Cached against full decoding over one generation. Differences and margins are in logits.

    `first_difference` is the first token where the free-running generations part (None: all are equal), `margin`
    the gap between the reference's two largest logits there. `max_difference` is the largest difference of any
    logit over all positions when both are fed the reference's tokens, `tolerance` what rounding explains.
    """

    num_tokens: int
    first_difference: int | None
    margin: float | None
    max_difference: float
    tolerance: float

    @property
    def num_equal(self) -> int:
        """Tokens equal from the start: after the first difference the two answer different questions."""
        return self.num_tokens if self.first_difference is None else self.first_difference

    @property
    def is_near_tie(self) -> bool:
        """Whether the difference that was seen can have turned the choice where the generations part."""
        return self.margin is None or self.margin <= 2 * self.max_difference

    def __str__(self) -> str:
        logits = f"logits differ by at most {self.max_difference:.2g} (rounding: {self.tolerance:.2g})"
        if self.first_difference is None:
            return f"{self.num_tokens} of {self.num_tokens} tokens identical; {logits}"
        kind = "a near tie" if self.is_near_tie else "no tie"
        where = f"token {self.first_difference + 1} differs at a top-2 margin of {self.margin:.2g}, {kind}"
        return f"{self.num_equal} of {self.num_tokens} tokens identical; {where}; {logits}"


# The dtype that each one's error is measured against: the next finer, or for float64 the next coarser.
_NEIGHBOUR = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float64,
    torch.float64: torch.float32,
}


def rounding_tolerance(model: Any, sequence: torch.Tensor, own: torch.Tensor) -> float:
    """What rounding alone may do to the model's `own` logits (T, V), the last T of `sequence` (1, S), in logits.

    Measured on the model at hand, without any cache: its own pass against one in the next finer dtype. Two ways
    of computing differ by at most the sum of their errors, and each may err twice as much as the one seen.
    Float64 has no finer dtype: its error is float32's, scaled by the two spacings.
    """
    dtype = next(model.parameters()).dtype
    neighbour = _NEIGHBOUR[dtype]
    other = logits_in(model, neighbour, sequence)[-own.shape[0] :]
    spacing = torch.finfo(dtype).eps
    scale = spacing / max(spacing, torch.finfo(neighbour).eps)
    return 4 * scale * float((own - other).abs().max())


@torch.inference_mode()
def logits_in(model: Any, dtype: torch.dtype, sequence: torch.Tensor) -> torch.Tensor:
    """Logits (T, V) in float64 of one full pass computed in `dtype`."""
    parameter = next(model.parameters())
    if parameter.dtype is not dtype:
        device = parameter.device
        if dtype is torch.float64 and device.type == "mps":  # which has none
            device = torch.device("cpu")
        num_bytes = sum(p.numel() for p in model.parameters()) * dtype.itemsize
        demand_memory(num_bytes, device, f"a copy of the model in {dtype}")
        model, sequence = copy.deepcopy(model).to(device, dtype), sequence.to(device)
    return full_pass(model, sequence)[0].cpu().double()


def own_logits(model: Any, sequence: torch.Tensor) -> torch.Tensor:
    """Logits (T, V) in float64 of one full pass in the model's own dtype."""
    return logits_in(model, next(model.parameters()).dtype, sequence)


@torch.inference_mode()
def teacher_forced_cached(model: Any, prompt: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Logits (T, V) before each of `tokens` (1, T), each fed through the cache."""
    logits, cache = prefill(model, prompt)
    rows = [logits[0, -1]]
    rows += [decode_step(model, token, cache)[0, -1] for token in tokens[:, :-1].split(1, dim=1)]
    return torch.stack(rows)


def compare(model: Any, prompt: torch.Tensor, reference: torch.Tensor, cached: torch.Tensor) -> Agreement:
    """The reference's generation (1, T), made without a cache, against the cached one."""
    assert reference.shape == cached.shape, f"{tuple(reference.shape)} and {tuple(cached.shape)} tokens"
    sequence = torch.cat([prompt, reference[:, :-1]], dim=1)
    full_logits = own_logits(model, sequence)[prompt.shape[1] - 1 :]
    cached_logits = teacher_forced_cached(model, prompt, reference).cpu().double()
    differing = (reference != cached).flatten().nonzero()
    first = int(differing[0]) if differing.numel() else None
    margin = None
    if first is not None:
        top = full_logits[first].topk(2).values
        margin = float(top[0] - top[1])
    return Agreement(
        num_tokens=reference.shape[1],
        first_difference=first,
        margin=margin,
        max_difference=float((full_logits - cached_logits).abs().max()),
        tolerance=rounding_tolerance(model, sequence, full_logits),
    )


@torch.inference_mode()
def greedy_shortfalls(model: Any, prompt: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """How far each of `tokens` (1, T) lies below the largest logit that one full pass finds there: (T,) in logits.

    All zero: by induction, greedy decoding of this prompt alone, without any cache, gives these very tokens. In
    finite precision a choice may differ where it is a near tie: up to twice `rounding_tolerance`.
    """
    sequence = torch.cat([prompt, tokens[:, :-1]], dim=1)
    logits = full_pass(model, sequence)[0, prompt.shape[1] - 1 :].cpu().double()  # (T, V)
    chosen = logits.gather(1, tokens[0, :, None].cpu())[:, 0]
    return logits.max(1).values - chosen


def assert_greedy(model: Any, generated: list[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """Demand of every (prompt, tokens) that decoding it alone would choose the same; the number of near ties.

    Raises:
        AssertionError: a token that no rounding explains. The tolerance is measured on the longest sequence.
    """
    prompt, tokens = max(generated, key=lambda pair: pair[0].shape[1] + pair[1].shape[1])
    sequence = torch.cat([prompt, tokens], dim=1)
    tolerance = 2 * rounding_tolerance(model, sequence, own_logits(model, sequence))
    num_ties = 0
    for index, (each_prompt, each_tokens) in enumerate(generated):
        shortfalls = greedy_shortfalls(model, each_prompt, each_tokens)
        worst = float(shortfalls.max())
        assert worst <= tolerance, (
            f"sequence {index}: token {int(shortfalls.argmax()) + 1} lies {worst:.2g} logits below the choice of "
            f"decoding it alone, and rounding explains {tolerance:.2g}"
        )
        num_ties += int((shortfalls > 0).sum())
    return num_ties


def assert_as_alone(model: Any, steps: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Demand of every step's logits (V,) that a full pass over its sequence (1, T) alone ends in the same.

    Raises:
        AssertionError: by the name of the step; more than rounding, which is measured on the first sequence.
    """
    tolerance = None
    for name, (sequence, logits) in steps.items():
        own = own_logits(model, sequence)
        if tolerance is None:
            tolerance = rounding_tolerance(model, sequence, own)
        difference = float((logits.cpu().double() - own[-1]).abs().max())
        assert difference <= tolerance, (
            f"{name} differs by {difference:.2g} from a full pass, rounding is {tolerance:.2g}"
        )


def assert_within_rounding(
    model: Any, sequence: torch.Tensor, logits: torch.Tensor, *, times: float = 2.0
) -> float:
    """Demand of logits (T, V), the last of a sequence (1, S) by other means, that they are as right as the model's.

    Right is a full pass over the same weights in the next finer dtype. The distance from it, over all T V logits
    together, may be `times` that of the model's own pass; the quotient is returned.

    Raises:
        AssertionError: they are farther off.
    """
    dtype = next(model.parameters()).dtype
    right = logits_in(model, _NEIGHBOUR[dtype], sequence)[-len(logits) :]
    own = float((own_logits(model, sequence)[-len(logits) :] - right).norm())
    found = float((logits.cpu().double() - right).norm())
    assert found <= times * own, f"logits are {found / own:.2f} times as far off as rounding in {dtype} puts them"
    return found / own
