"""Plots of any timed claim, known or not: lines over a number that its cases or laps have, else a dot for each."""

from collections.abc import Iterator, Sequence

import altair as alt

from bench_utils.history.report.columns import Column
from bench_utils.history.report.parts import (
    STATED,
    Chart,
    Row,
    by_run,
    cases,
    dashed,
    data,
    hover,
    lines,
    log_x,
    log_y,
    samples_in_words,
    spec,
)
from bench_utils.measure import statistics
from bench_utils.measure.measurement import Bound, Measurement
from bench_utils.verdict import case_id


def roofline(columns: Sequence[Column]) -> Chart:
    """Every timed case and lap against its machine's own limits: how much of each it reaches."""
    rows = []
    for column in columns:
        for key, found in column.record.cases.items():
            bounds = {key: (found.bound, found.samples_s)}
            bounds |= {f"{key}: {name}": (lap.bound, lap.samples_s) for name, lap in found.laps.items()}
            rows += [_roof_row(column, name, bound, samples) for name, (bound, samples) in bounds.items() if bound]
    rows = [row for row in rows if row["of bandwidth"] and row["of peak"]]
    for row in rows:
        row["intensity over the ridge"] = row["of peak"] / row["of bandwidth"]
        row["share of the limit"] = max(row["of peak"], row["of bandwidth"])
    points = (
        alt.Chart(data(rows))
        .mark_point(filled=True, size=45, opacity=0.7)
        .encode(
            x=log_x("intensity over the ridge", "arithmetic intensity over the ridge point (1: both limits meet)"),
            y=log_y("share of the limit", "share of the limit that binds (1: at the roofline)"),
            color=by_run(),
            shape=alt.Shape("bound by:N", title=None),
            tooltip=hover(["run", "case", "bound by", "samples"], {"of bandwidth": ".1%", "of peak": ".1%"}),
        )
    )
    roof = dashed([{"y": 1.0}]).encode(y="y:Q")
    return Chart("Every timed case against the machine's own limits", spec(points + roof, height=340), rows)


def _roof_row(column: Column, case: str, bound: Bound, samples: Sequence[float]) -> Row:
    return {
        "run": column.label,
        "case": case,
        "bound by": bound.kind,
        "of bandwidth": bound.share_of_bandwidth,
        "of peak": bound.share_of_peak,
        "samples": samples_in_words(samples),
    }


# What the numbers are that laps are called by.
_LAPS_ARE = {"B3": "tokens of context", "C2": "sequences decoded together"}
# More dots than these are no plot; the table of cases has them all.
_MOST_DOTS = 60


def timed(claim_id: str, columns: Sequence[Column]) -> Iterator[Chart]:
    """The whole times of a claim's cases, and those of their laps."""
    rows = [
        row for column in columns for found in cases(column.record, claim_id) for row in _time_rows(column, found)
    ]
    whole = [row for row in rows if not row["lap"]]
    laps = [row for row in rows if row["lap"]]
    if whole:
        yield _lines_or_dots("Time of each case", whole, list(_params(whole)))
    if laps:
        numeric = all(row["lap"].isdigit() for row in laps)
        for row in laps:
            row["x"] = int(row["lap"]) if numeric else None
        of_what = _LAPS_ARE.get(claim_id, "lap")
        yield _lines_or_dots(f"Time by {of_what}", laps, ["x"] if numeric else [], of_what)


def _time_rows(column: Column, found: Measurement) -> Iterator[Row]:
    for lap, samples in (("", found.samples_s), *((name, lap.samples_s) for name, lap in found.laps.items())):
        if samples:
            interval = statistics.median(found.lap_by_run_s(lap) if lap else samples)
            yield {
                "run": column.label,
                "case": case_id(found.key),
                "lap": lap,
                **{name: value for name, value in found.case.items() if name not in ("case", "run", "lap")},
                "ms": interval.value * 1e3,
                "low": interval.low * 1e3,
                "high": interval.high * 1e3,
                "samples": STATED if column.record.is_stated else samples_in_words(samples),
            }


def _params(rows: Sequence[Row]) -> Iterator[str]:
    """The parameters that are numbers, of which there are several: candidates for an axis."""
    for name in rows[0]:
        values = {row.get(name) for row in rows}
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if name not in ("ms", "low", "high", "x") and is_number and len(values) > 2:
            yield name


def _lines_or_dots(title: str, rows: Sequence[Row], axes: Sequence[str], of_what: str = "") -> Chart:
    tooltip = hover(["run", "case", "lap", "samples"], {"ms": ".4~g", "low": ".4~g", "high": ".4~g"})
    if axes:
        axis = axes[0]
        several = len({row["run"] for row in rows}) > 1
        for row in rows:
            others = [str(value) for name, value in row.items() if name not in _NOT_A_SERIES and name != axis]
            row["series"] = ", ".join([*([row["run"]] if several else []), *others]) or row["run"]
        base = alt.Chart(data(rows)).encode(
            x=log_x(axis, of_what or axis.replace("_", " ")),
            color=alt.Color("series:N", title=None),
            tooltip=tooltip,
        )
        drawn = (
            base.mark_line().encode(y=log_y("ms", "ms, median and 95 % interval"))
            + base.mark_rule().encode(y="low:Q", y2="high:Q")
            + base.mark_point(filled=True, size=50).encode(y="ms:Q")
        )
        return Chart(title, spec(drawn), rows)
    if len(rows) > _MOST_DOTS:
        return Chart(title, {}, [])
    for row in rows:
        row["what"] = ": ".join(part for part in (row["case"], row["lap"]) if part)
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=220)),
        color=by_run(),
        tooltip=tooltip,
    )
    drawn = base.mark_rule().encode(x=log_x("low", "ms, median and 95 % interval"), x2="high:Q")
    drawn += base.mark_point(filled=True, size=50).encode(x="ms:Q")
    return Chart(title, spec(drawn, height=lines(row["what"] for row in rows)), rows)


_NOT_A_SERIES = ("run", "case", "lap", "ms", "low", "high", "samples", "x", "series")
