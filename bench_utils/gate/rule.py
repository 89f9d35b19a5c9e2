"""The rule: when pairs of times say that cases became slower, that they did not, or nothing. No process, no clock.

Each pair gives a case one log ratio, head over base. What they say of the true one is Student's t on their mean,
trimmed where there are ten or more: of so few ratios a bootstrap over pairs makes an interval that is a quarter to
a third too narrow. Over all cases at once, the flagged ones are held to a share of false ones (Benjamini and
Hochberg, 1995). When it is asked, and that what it flags has to be slower again, is the trial's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Any

from bench_utils.measure.statistics import Interval

# Of every ten pairs the highest and the lowest ratio are left out; more, and the error would be underestimated.
_TRIMMED = 0.1
# "Would have been seen" means nine times of ten, in the first pairs and in those that confirm it.
_POWER = 0.95


class State(Enum):
    """What the pairs of a case say."""

    SLOWER = "slower"
    SAME = "as fast"
    FASTER = "faster"
    UNDECIDED = "cannot tell"
    UNMEASURED = "not measured"


DECIDED = (State.SLOWER, State.SAME, State.FASTER)


@dataclass(frozen=True)
class Rule:
    """When it looks at the pairs, and how often it may err over all these looks; a look costs its share of that."""

    looks: tuple[int, ...] = (7, 10, 14, 20, 28)
    error: float = 0.05

    @property
    def level(self) -> float:
        """What one look may err, on either side."""
        return self.error / len(self.looks)


@dataclass(frozen=True)
class Judged:
    """A case: its ratio, head over base, with the interval that the rule goes by, and what it could have seen.

    `sees`: the smallest slowdown, as a share, that these pairs would have flagged nine times of ten.
    """

    state: State
    ratio: Interval | None = None
    sees: float | None = None
    num_pairs: int = 0
    reason: str = ""

    @property
    def ratio_text(self) -> str:
        """'1.100x [1.071, 1.130]', head over base."""
        return self.ratio.format(".3f", "x") if self.ratio else "no ratio"


# The samples of each turn, in seconds per run.
Turns = Sequence[Sequence[float]]


def log_ratio(base: Turns, head: Turns) -> float:
    """What a pair says of a case: the median of its turns, each of medians that lie a tenth of a second apart.

    A machine that changes its speed between two turns, or stalls in one, spoils one of them.
    """
    return median(math.log(median(after) / median(before)) for before, after in zip(base, head, strict=True))


@dataclass(frozen=True)
class Estimate:
    """A case's log ratio with its standard error, and the degrees of freedom that this error has."""

    mean: float
    error: float
    freedom: int
    num_pairs: int

    def p_above(self, bound: float) -> float:
        """How probable pairs like these are where the true ratio is `bound` at most."""
        return float(_student().sf((self.mean - bound) / self.error, self.freedom))

    def p_below(self, bound: float) -> float:
        """The same where it is `bound` at least."""
        return float(_student().cdf((self.mean - bound) / self.error, self.freedom))

    def half_width(self, tail: float) -> float:
        """From the mean to the end of the interval that leaves `tail` outside on a side."""
        return float(_student().isf(tail, self.freedom)) * self.error


def estimate(values: Sequence[float]) -> Estimate:
    """What the log ratios of some pairs say: their trimmed mean, with Tukey and McLaughlin's error (1963)."""
    import numpy as np

    num, cut = len(values), int(_TRIMMED * len(values))
    kept = np.sort(values)[cut : num - cut]
    # s_w / ((1 - 2 g) sqrt(n)), with the deviation of the winsorized ratios; h - 1 degrees of freedom of h kept.
    winsorized = float(np.clip(values, kept[0], kept[-1]).std(ddof=1))
    # Ratios that are all the same, as a fake clock has them, still leave a width.
    error = max(winsorized, 1e-9) * math.sqrt(num) / len(kept)
    return Estimate(float(kept.mean()), error, len(kept) - 1, num)


def judge(estimates: Mapping[str, Estimate], min_effects: Mapping[str, float], level: float) -> dict[str, Judged]:
    """All cases at once, each by its own estimate; the rest of `min_effects` is unmeasured."""
    bounds = {key: math.log1p(effect) for key, effect in min_effects.items()}
    slower = _discoveries({key: each.p_above(bounds[key]) for key, each in estimates.items()}, level)
    faster = _discoveries({key: each.p_below(-bounds[key]) for key, each in estimates.items()}, level)
    found = {}
    for key, bound in bounds.items():
        each = estimates.get(key)
        if each is None:
            found[key] = Judged(State.UNMEASURED)
            continue
        state = State.UNDECIDED
        if key in slower:
            state = State.SLOWER
        elif key in faster:
            state = State.FASTER
        elif each.p_below(bound) <= level:
            state = State.SAME
        found[key] = Judged(state, _ratio(each, level), _sees(each, bound, level / len(bounds)), each.num_pairs)
    return found


def _discoveries(p_values: Mapping[str, float], level: float) -> set[str]:
    """Those of all cases that may be called different, with a share of false ones of `level` among them."""
    from scipy.stats import false_discovery_control

    if not p_values:
        return set()
    adjusted = false_discovery_control(list(p_values.values()), method="bh")
    return {key for key, p in zip(p_values, adjusted, strict=True) if p <= level}


def _ratio(each: Estimate, level: float) -> Interval:
    width = each.half_width(level)
    return Interval(*(math.exp(value) for value in (each.mean, each.mean - width, each.mean + width)))


def _sees(each: Estimate, bound: float, tail: float) -> float:
    """With as many pairs, twice, and as much noise; `tail`: where it is the only case that became slower."""
    return math.expm1(bound + each.half_width(tail) + each.half_width(1 - _POWER))


def _student() -> Any:
    from scipy.stats import t  # slow to import, and not needed by most commands

    return t
