"""The plots of claims whose figures are no times, or more than times, and the choice among all plots."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import altair as alt

from bench_utils.history.entries import RunRecord
from bench_utils.history.report import timings
from bench_utils.history.report.columns import Column
from bench_utils.history.report.parts import (
    WIDTH,
    WITH_INTERVAL,
    Chart,
    Row,
    by_run,
    cases,
    dashed,
    data,
    ends,
    hover,
    in_ms,
    lines,
    log_x,
    log_y,
    samples_in_words,
    spec,
)
from bench_utils.measure import statistics
from bench_utils.measure.measurement import Measurement
from bench_utils.verdict import case_id


class NotDrawnError(ValueError):
    """A record of another time, whose figures of one claim cannot be drawn."""


def charts_of(claim_id: str, columns: Sequence[Column]) -> list[Chart]:
    """The plots of a claim over the columns; none where nothing of it can be drawn.

    Raises:
        NotDrawnError: a record holds the claim in another shape than today's.
    """
    try:
        return _charts_of(claim_id, columns)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise NotDrawnError(f"{type(error).__name__}: {error}") from error


def _charts_of(claim_id: str, columns: Sequence[Column]) -> list[Chart]:
    draw = _SPECIAL.get(claim_id)
    found = list(draw(columns)) if draw else []
    if claim_id not in _REPLACED:
        found += timings.timed(claim_id, columns)
    return [chart for chart in found if chart.rows]


def _batches(columns: Sequence[Column]) -> Iterator[Chart]:
    """C1: throughput and latency by batch, with the knee."""
    rows, knees = [], []
    for column in columns:
        for found in cases(column.record, "C1"):
            if found.samples_s:
                interval = statistics.median(found.samples_s)
                batch = int(found.case["batch"])
                common = {"run": column.label, "batch": batch, "samples": samples_in_words(found.samples_s)}
                rates = (batch / interval.value, batch / interval.high, batch / interval.low)
                rows.append({**common, "what": "tokens/s", **ends(*rates)})
                rows.append({**common, "what": "ms a step", **ends(*in_ms(interval))})
        verdict = column.record.verdicts.get("C1")
        if verdict and (knee := verdict.figures.get("knee_batch")):
            knees.append({"run": column.label, "value": knee.value, "low": knee.low, "high": knee.high})
    panels = []
    for what in ("tokens/s", "ms a step"):
        base = alt.Chart(data([row for row in rows if row["what"] == what])).encode(
            x=log_x("batch", "sequences in the batch"),
            color=by_run(),
            tooltip=hover(["run", "batch", "samples"], WITH_INTERVAL),
        )
        drawn = base.mark_line(point=True).encode(y=log_y("value", what)) + base.mark_rule().encode(
            y="low:Q", y2="high:Q"
        )
        if knees:
            drawn += alt.Chart(data(knees)).mark_rect(opacity=0.12).encode(x="low:Q", x2="high:Q")
            drawn += dashed(knees).encode(x="value:Q", color="run:N", tooltip=hover(["run"], WITH_INTERVAL))
        panels.append(drawn.properties(width=WIDTH, height=190))
    title = "Throughput and latency by batch; dashed: where throughput bends, with its interval"
    yield Chart(title, spec(alt.vconcat(*panels)), rows)


def _seats(columns: Sequence[Column]) -> Iterator[Chart]:
    """C2: who sits where, in steps, for both schedulers; the tail is a seat held for others."""
    for column in columns:
        found = next((case for case in cases(column.record, "C2") if "timeline_static" in case.notes), None)
        if found is None:
            continue
        rows = [
            {"policy": policy, "seat": seat, "request": request, "from": start, "to": end, "what": what}
            for policy in ("static", "continuous")
            for seat, request, seated, done, left in json.loads(found.notes[f"timeline_{policy}"])
            for what, start, end in (("decoding", seated, done), ("held, done", done, left))
            if end > start
        ]
        drawn = (
            alt.Chart(data(rows))
            .mark_bar(height=9, stroke="white", strokeWidth=0.4)
            .encode(
                x=alt.X("from:Q", title="steps"),
                x2="to:Q",
                y=alt.Y("seat:O", title="seat"),
                color=alt.Color("what:N", title=None, scale=alt.Scale(range=["#4c78a8", "#d9d9d9"])),
                row=alt.Row("policy:N", title=None, sort=["static", "continuous"]),
                tooltip=hover(["policy", "seat", "request", "from", "to", "what"]),
            )
            .properties(width=700, height=110)
        )
        yield Chart("Seats over time, the chapter's 64 requests on 8 seats", spec(drawn, own_size=True), rows)
        return  # steps are the same on every machine


def _errors(columns: Sequence[Column]) -> Iterator[Chart]:
    """D2 and D3: the error of each scheme over all projections."""
    rows = [
        {"run": column.label, "scheme": found.case["scheme"], "what": what, "error": found.counters[counter]}
        for column in columns
        for found in (*cases(column.record, "D2"), *cases(column.record, "D3"))
        for what, counter in (("mean", "mean_error"), ("worst", "worst_error"))
        if counter in found.counters
    ]
    drawn = (
        alt.Chart(data(rows))
        .mark_point(filled=True, size=70)
        .encode(
            x=log_x("error", "relative error of the weights"),
            y=alt.Y("scheme:N", title=None, sort="x", axis=alt.Axis(labelLimit=220)),
            color=by_run(),
            shape=alt.Shape("what:N", title=None),
            tooltip=hover(["run", "scheme", "what"], {"error": ".4f"}),
        )
    )
    yield Chart("Error by scheme", spec(drawn, height=lines(row["scheme"] for row in rows)), rows)


def _quality(columns: Sequence[Column]) -> Iterator[Chart]:
    """E1: perplexity against bits per weight."""
    rows: list[Row] = []
    references: list[Row] = []
    for column in columns:
        verdict = column.record.verdicts.get("E1")
        for found in cases(column.record, "E1"):
            scheme = str(found.case["scheme"])
            bits = (verdict.by_scheme if verdict else {}).get(scheme, {}).get("bits", "")
            row = {"run": column.label, "scheme": scheme, "bits": None, **_perplexity(found)}
            if scheme == "reference":
                references.append(row)
            elif bits.replace(".", "", 1).isdigit():
                rows.append({**row, "bits": float(bits)})
    base = alt.Chart(data(rows)).encode(
        x=alt.X("bits:Q", title="bits a weight", scale=alt.Scale(zero=False)),
        y=log_y("perplexity", "perplexity"),
        color=by_run(),
        tooltip=hover(["run", "scheme", "samples"], {"bits": ".2f", "perplexity": ".4~g"}),
    )
    drawn = base.mark_point(filled=True, size=70) + base.mark_text(align="left", dx=8).encode(text="scheme:N")
    drawn += dashed(references).encode(
        y="perplexity:Q", color="run:N", tooltip=hover(["run", "scheme", "samples"], {"perplexity": ".4~g"})
    )
    yield Chart("Quality against bits; dashed: the reference", spec(drawn, height=320), [*references, *rows])


def _perplexity(found: Measurement) -> Row:
    losses = json.loads(found.notes.get("losses_nats", "[]"))
    words = f"the mean of {len(losses)} tokens' losses" if losses else ""
    return {"perplexity": found.counters["perplexity"], "samples": words}


def _histogram(columns: Sequence[Column]) -> Iterator[Chart]:
    """E4: the largest magnitude of each dimension of the residual stream."""
    rows = []
    for column in columns:
        found = next((case for case in cases(column.record, "E4") if "histogram" in case.notes), None)
        if found is not None:
            drawn = json.loads(found.notes["histogram"])
            ends_of = [*(f"to {high:,}" for high in drawn["edges"][1:]), "and more"]
            edges = [f"{low:,} {end}" for low, end in zip(drawn["edges"], ends_of, strict=True)]
            rows += [
                {"run": column.label, "layer": drawn["layer"], "magnitude": edge, "dimensions": num}
                | {"shown": max(num, 0.5), "none": 0.5}
                for edge, num in zip(edges, drawn["counts"], strict=False)  # the last bin may be missing
            ]
    chart = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=alt.X("magnitude:N", title="largest magnitude of a dimension", sort=None),
            xOffset="run:N",
            y=log_y("shown", "dimensions (none: a half)"),
            y2="none:Q",
            color=by_run(),
            tooltip=hover(["run", "layer", "magnitude", "dimensions"]),
        )
    )
    yield Chart("Activations of one layer: a single dimension far from all others", spec(chart), rows)


def _products(columns: Sequence[Column]) -> Iterator[Chart]:
    """D5: the products with all of a layer's shapes, by format and tokens: where the lines cross it breaks even."""
    rows = []
    for column in columns:
        for found in cases(column.record, "D5"):
            medians: dict[str, list[float]] = {}
            for name, lap in found.laps.items():
                medians.setdefault(name.partition(" | ")[0], []).append(median(lap.samples_s))
            rows += [
                {
                    "run": column.label,
                    "tokens": found.key[0],
                    "format": stored,
                    "ms": sum(each) * 1e3,
                    "shapes": len(each),
                }
                for stored, each in medians.items()
            ]
    base = alt.Chart(data(rows)).encode(
        x=log_x("tokens", "tokens at once (M)"),
        y=log_y("ms", "ms, the medians of all shapes added"),
        color=alt.Color("format:N", title=None),
        strokeDash=alt.StrokeDash("run:N", title=None),
        tooltip=hover(["run", "format", "tokens", "shapes"], {"ms": ".4~g"}),
    )
    yield Chart("Products with a layer's matrices", spec(base.mark_line(point=True), height=320), rows)


def _speculation(columns: Sequence[Column]) -> Iterator[Chart]:
    """F2: the speedup of speculative decoding by the length of its drafts."""
    rows = []
    for column in columns:
        verdict = column.record.verdicts.get("F2")
        for name, figure in (verdict.figures if verdict else {}).items():
            draft, _, length = name.partition(", g = ")
            if length.isdigit():
                samples = _paired(column.record, draft, length)
                rows.append(
                    {"run": column.label, "draft": draft, "g": int(length), "samples": samples}
                    | ends(figure.value, figure.low, figure.high)
                )
    base = alt.Chart(data(rows)).encode(
        x=alt.X("g:O", title="tokens drafted at once"),
        color=alt.Color("draft:N", title=None),
        strokeDash=alt.StrokeDash("run:N", title=None),
        tooltip=hover(["run", "draft", "g", "samples"], {"value": ".2f", "low": ".2f", "high": ".2f"}),
    )
    drawn = base.mark_line(point=True).encode(y=alt.Y("value:Q", title="times plain decoding"))
    drawn += base.mark_rule().encode(y="low:Q", y2="high:Q")
    drawn += dashed([{"y": 1.0}]).encode(y="y:Q")
    yield Chart("Speedup by the length of drafts", spec(drawn), rows)


def _paired(record: RunRecord, draft: str, length: str) -> str:
    """The raw laps that a speedup is the ratio of."""
    found = next((case for case in cases(record, "F2") if case_id(case.key) == draft), None)
    if found is None or f"g = {length}" not in found.laps or "plain" not in found.laps:
        return ""
    both = (samples_in_words(found.laps[name].samples_s) for name in ("plain", f"g = {length}"))
    return " over ".join(both)


_SPECIAL: Mapping[str, Callable[[Sequence[Column]], Iterator[Chart]]] = {
    "C1": _batches,
    "C2": _seats,
    "D2": _errors,
    "D5": _products,
    "E1": _quality,
    "E4": _histogram,
    "F2": _speculation,
}
# Those whose own plot says all that the general one would.
_REPLACED = ("C1", "D5", "F2")
