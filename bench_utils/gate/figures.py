"""How far a rule can be trusted on a machine: what a self-test found, as records keep it."""

from collections.abc import Mapping
from dataclasses import dataclass

from bench_utils.measure import statistics
from bench_utils.measure.statistics import Interval


@dataclass(frozen=True)
class Contrast:
    """Two arms of a self-test that are held against each other, and how much slower the second one was made."""

    base: str
    head: str
    slower_by: float = 0.0


@dataclass(frozen=True)
class Share:
    """How many of how many; `interval` treats what shares pairs as one."""

    num: int
    out_of: int
    num_independent: int

    @property
    def interval(self) -> Interval | None:
        """Wilson's, over what is independent; None without any."""
        if not self.num_independent:
            return None
        return statistics.proportion(round(self.num / self.out_of * self.num_independent), self.num_independent)


@dataclass(frozen=True)
class Figures:
    """One rule on one pool. `alarms`: runs on identical code that call any case slower.

    By how much one case was made slower, alone: `seen`, how often it is called so, and `undecided`, how often the
    rule cannot tell, which does not pass either.
    """

    name: str
    alarms: Share
    undecided_runs: Share
    seen: Mapping[str, Share]
    undecided: Mapping[str, Share]
