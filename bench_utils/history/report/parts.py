"""What every plot is made of: rows of data with their raw samples in words, axes, and a spec for the page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from bench_utils.history.entries import RunRecord
from bench_utils.measure.measurement import Measurement
from bench_utils.measure.statistics import Interval

WIDTH, HEIGHT = "container", 260
_AS_WIDE_AS_ITS_PLACE = alt.AutoSizeParams(type="fit-x", contains="padding")
_LINE_HEIGHT = 20
STATED = "stated, without samples"
# So many raw samples are written out beside a point.
_SHOWN_SAMPLES = 24
Row = dict[str, Any]
# How a figure and the ends of its interval are told on hover.
WITH_INTERVAL = {"value": ".4~g", "low": ".4~g", "high": ".4~g"}


@dataclass(frozen=True)
class Chart:
    """A plot, what it shows in words, and the same as a table."""

    title: str
    spec: Mapping[str, Any]
    rows: Sequence[Row]


def data(rows: Sequence[Row]) -> Any:
    """Rows as a plot's own data."""
    return alt.Data(values=list(rows))  # type: ignore[no-untyped-call]


def by_run() -> alt.Color:
    """A colour for each record."""
    return alt.Color("run:N", title=None)


def dashed(rows: Sequence[Row]) -> Any:
    """Lines to hold points against: a limit, a reference."""
    return alt.Chart(data(rows)).mark_rule(strokeDash=[4, 3])


def hover(words: Sequence[str], numbers: Mapping[str, str] | None = None) -> list[alt.Tooltip]:
    """What is shown on hover: fields in words, then numbers with their formats."""
    told = [alt.Tooltip(f"{field}:N") for field in words]
    return told + [alt.Tooltip(f"{field}:Q", format=shape) for field, shape in (numbers or {}).items()]


def cases(record: RunRecord, claim_id: str) -> list[Measurement]:
    """A claim's valid cases."""
    return [found for found in record.cases.values() if found.claim == claim_id and found.validity.is_ok]


def samples_in_words(samples: Sequence[float], shown: int = _SHOWN_SAMPLES) -> str:
    """'9 samples, ms: 38.2, 37.9, ...', as they were taken."""
    told = ", ".join(f"{sample * 1e3:.4g}" for sample in samples[:shown])
    more = ", ..." if len(samples) > shown else ""
    return f"{len(samples)} sample{'s' * (len(samples) != 1)}, ms: {told}{more}"


def ends(value: float, low: float | None, high: float | None) -> Row:
    """A figure with its interval, which is the figure itself where none is known."""
    return {"value": value, "low": value if low is None else low, "high": value if high is None else high}


def in_ms(interval: Interval) -> tuple[float, float, float]:
    """Seconds in milliseconds: the value and the ends."""
    return interval.value * 1e3, interval.low * 1e3, interval.high * 1e3


def log_x(field: str, title: str) -> alt.X:
    """A logarithmic axis."""
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(type="log"))


def log_y(field: str, title: str) -> alt.Y:
    """A logarithmic axis."""
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(type="log"))


def lines(names: Iterable[Any]) -> int:
    """The height of a plot with a line for each name."""
    return _LINE_HEIGHT * len(set(names))


def spec(chart: Any, *, height: Any = HEIGHT, own_size: bool = False) -> Mapping[str, Any]:
    """The plot for the page: as wide as its place, or of a size of its own."""
    if not own_size and not isinstance(chart, alt.VConcatChart):
        chart = chart.properties(width=WIDTH, height=height, autosize=_AS_WIDE_AS_ITS_PLACE)
    found: Mapping[str, Any] = chart.to_dict()
    return found
