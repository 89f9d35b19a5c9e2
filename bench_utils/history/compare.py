"""Two records, claim by claim and same case by same case; what is unlike is said and not called a difference."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from bench_utils.history.entries import Figure, RunRecord, VerdictEntry
from bench_utils.measure import statistics
from bench_utils.measure.measurement import Bound, Lap, Measurement
from bench_utils.measure.statistics import Interval

# The chapter's model by the names that it has here; its shape has the same bytes, products and times.
_CHAPTERS_MODEL = ("qwen2.5-0.5b-instruct", "qwen/qwen2.5-0.5b-instruct", "qwen2.5-0.5b-shape")


@dataclass(frozen=True)
class TimePair:
    """One case, or one lap of it, on both sides. `b_over_a` above 1: B is slower.

    `predicted`: the same ratio if both sides reached their own roofline; `used_a`, `used_b`: the share of the limit
    that binds, so that a faster machine that is used worse shows.
    """

    name: str
    a_s: Interval
    b_s: Interval
    b_over_a: Interval
    predicted: float | None
    used_a: float | None
    used_b: float | None


@dataclass(frozen=True)
class CountPair:
    """A counter that differs."""

    name: str
    a: float
    b: float


@dataclass(frozen=True)
class CasePair:
    """A case of one claim; `unlike` says why its sides are no two measurements of the same thing.

    `one_sided`: laps and counters that one side lacks.
    """

    key: str
    unlike: str = ""
    times: tuple[TimePair, ...] = ()
    counters: tuple[CountPair, ...] = ()
    num_equal_counters: int = 0
    one_sided: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClaimPair:
    """A claim on both sides, with its verdicts, its figures, and its cases."""

    id: str
    a: VerdictEntry | None
    b: VerdictEntry | None
    figures: Mapping[str, tuple[Figure, Figure]]
    cases: tuple[CasePair, ...]

    @property
    def differs(self) -> bool:
        """Whether the verdicts are two, and not the same; a text's figures are no verdict."""
        outcomes = {each.outcome for each in (self.a, self.b) if each is not None} - {"stated"}
        return len(outcomes) > 1


@dataclass(frozen=True)
class Comparison:
    """All claims of two records, those whose verdict differs first; `unlike`: what sets all their cases apart."""

    unlike: tuple[str, ...]
    claims: tuple[ClaimPair, ...]


@dataclass(frozen=True)
class _Sides:
    """What two records are to each other, whatever the case."""

    a: RunRecord
    b: RunRecord

    @property
    def is_stated(self) -> bool:
        """Whether one of them is a text's, which says little of itself."""
        return self.a.is_stated or self.b.is_stated

    @property
    def is_same_code(self) -> bool:
        """Whether both ran the claims of one clean commit."""
        source = self.a.source
        return source.commit is not None and source == self.b.source and not source.is_dirty


def compare(a: RunRecord, b: RunRecord) -> Comparison:
    """Hold two records against each other; nothing is called a difference between unlike cases."""
    sides = _Sides(a, b)
    unlike = tuple(_unlike(sides))
    ids = sorted({*a.verdicts, *b.verdicts, *(found.claim for found in (*a.cases.values(), *b.cases.values()))})
    claims = [_claim(claim_id, sides, "; ".join(unlike)) for claim_id in ids]
    return Comparison(unlike, tuple(sorted(claims, key=lambda pair: not pair.differs)))


def _unlike(sides: _Sides) -> Iterator[str]:
    a, b = sides.a, sides.b
    if not _is_same_model(sides):
        yield f"model {a.model.name} ({a.model.revision}) against {b.model.name} ({b.model.revision})"
    if sides.is_stated:
        return
    if a.placement.dtype != b.placement.dtype:
        yield f"{a.placement.dtype} against {b.placement.dtype}"
    if a.profile != b.profile:  # the same case is smaller there
        yield f"{a.profile} profile against {b.profile}"
    if dict(a.inputs) != dict(b.inputs):
        yield "the user's own files differ"


def _is_same_model(sides: _Sides) -> bool:
    models = [side.model for side in (sides.a, sides.b)]
    if sides.is_stated:
        return all(model.name.lower() in _CHAPTERS_MODEL for model in models)
    return len({(model.name, model.revision) for model in models}) == 1


def _claim(claim_id: str, sides: _Sides, unlike: str) -> ClaimPair:
    a, b = sides.a, sides.b
    one, other = a.verdicts.get(claim_id), b.verdicts.get(claim_id)
    figures = {}
    if one and other:
        figures = {name: (one.figures[name], other.figures[name]) for name in one.figures if name in other.figures}
    keys = dict.fromkeys(key for side in (a, b) for key, found in side.cases.items() if found.claim == claim_id)
    return ClaimPair(claim_id, one, other, figures, tuple(_case(key, sides, unlike) for key in keys))


def _case(key: str, sides: _Sides, unlike: str) -> CasePair:
    a, b = sides.a.cases.get(key), sides.b.cases.get(key)
    if a is None or b is None:
        return CasePair(key, f"not in {'A' if a is None else 'B'}")
    for side, found in (("A", a), ("B", b)):
        if not found.validity.is_ok:
            return CasePair(key, f"{found.validity.code} in {side}")
    is_same_workload = a.version == b.version and bool(a.version or sides.is_same_code)
    if not (unlike or sides.is_stated or is_same_workload):
        return CasePair(key, "the claim's workload is another version, or an unknown one")
    shared = [name for name in a.counters if name in b.counters]
    pairs = [CountPair(name, a.counters[name], b.counters[name]) for name in shared]
    different = tuple(pair for pair in pairs if pair.a != pair.b)
    num_equal = len(shared) - len(different)
    if unlike:
        return CasePair(key, unlike, num_equal_counters=num_equal)
    one_sided = () if sides.is_stated else tuple(_one_sided(a, b))
    return CasePair(key, "", tuple(_times(a, b)), different, num_equal, one_sided)


def _one_sided(a: Measurement, b: Measurement) -> Iterator[str]:
    """The laps, counters and times that one side lacks."""
    for what, one, other in (("lap ", a.laps, b.laps), ("", a.counters, b.counters)):
        yield from (f"{what}{name} in A only" for name in one if name not in other)
        yield from (f"{what}{name} in B only" for name in other if name not in one)
    if bool(a.samples_s) != bool(b.samples_s):
        yield f"timed in {'A' if a.samples_s else 'B'} only"


def _times(a: Measurement, b: Measurement) -> Iterator[TimePair]:
    if a.samples_s and b.samples_s:
        yield _pair("", a.samples_s, b.samples_s, a.bound, b.bound)
    for name, lap in a.laps.items():
        other: Lap | None = b.laps.get(name)
        if other is not None:
            yield _pair(name, a.lap_by_run_s(name), b.lap_by_run_s(name), lap.bound, other.bound)


def _pair(
    name: str, a_s: tuple[float, ...], b_s: tuple[float, ...], a_bound: Bound | None, b_bound: Bound | None
) -> TimePair:
    used_a, used_b = used(a_bound), used(b_bound)
    predicted = None
    if used_a and used_b and _limits(a_bound) == _limits(b_bound):
        # At its roofline a side would take the share of its time that it uses of the limit.
        predicted = median(b_s) * used_b / (median(a_s) * used_a)
    ratio = statistics.ratio(b_s, a_s)
    return TimePair(name, statistics.median(a_s), statistics.median(b_s), ratio, predicted, used_a, used_b)


def _limits(bound: Bound | None) -> tuple[bool, bool]:
    """Which limits a case was held against."""
    if bound is None:
        return False, False
    return bound.share_of_bandwidth is not None, bound.share_of_peak is not None


def used(bound: Bound | None) -> float | None:
    """The share of the limit that binds a case: of the bandwidth or of the peak, whichever is larger."""
    if bound is None:
        return None
    shares = (bound.share_of_bandwidth, bound.share_of_peak)
    return max((share for share in shares if share is not None), default=None)
