"""The page: one HTML file that opens offline, and asks for nothing outside itself."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from statistics import median
from typing import Any

from bench_utils.cache import cache_dir, write_text
from bench_utils.history.compare import used
from bench_utils.history.entries import RunRecord, VerdictEntry
from bench_utils.history.report import figures, timings
from bench_utils.history.report.columns import Column, Columns
from bench_utils.history.report.parts import STATED, Chart, samples_in_words
from bench_utils.measure import statistics
from bench_utils.measure.measurement import Bound, Measurement

_SECTIONS = {
    "A": "KV cache",
    "B": "Prefill and decode",
    "C": "Batching",
    "D": "Quantization",
    "E": "Outliers and quality",
    "F": "Speculative decoding",
    "G": "Distillation",
    "H": "Does it fit",
    "S": "The suite's own promises",
}


@dataclass(frozen=True)
class CaseLine:
    """A case in a claim's table, its samples in words beside every figure."""

    run: str
    case: str
    time: str
    noisy: bool
    limit: str
    counters: str
    validity: str
    samples: str


@dataclass(frozen=True)
class ClaimCard:
    """A claim over all columns."""

    id: str
    title: str
    kind: str
    chapter: str
    verdicts: Sequence[tuple[str, VerdictEntry | None]]
    charts: Sequence[Chart]
    not_drawn: str
    cases: Sequence[CaseLine]


def render(columns: Columns, refused: Iterable[str] = ()) -> str:
    """The whole page; every text of a record is escaped."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["spec"] = _as_script
    template = environment.from_string(resources.files(__package__).joinpath("page.html.jinja").read_text("utf-8"))
    shown = columns.shown
    cards = [_card(claim_id, shown) for claim_id in _claim_ids(shown)]
    sections: dict[str, list[ClaimCard]] = {}
    for card in cards:
        sections.setdefault(_SECTIONS.get(card.id[0], card.id[0]), []).append(card)
    return template.render(
        columns=[(column, _facts(column.record)) for column in shown],
        sections=sections,
        cards=cards,
        roofline=timings.roofline(shown),
        overview=columns.overview,
        refused=list(refused),
        library=vega_bundle(),
    )


def vega_bundle() -> str:
    """Vega, Vega-Lite and vega-embed in one script, bundled once for each version into the user's cache."""
    import vl_convert

    version = getattr(vl_convert, "__version__", "") or vl_convert.get_vega_version()
    kept = cache_dir() / f"vega-{version}-{vl_convert.get_vegalite_versions()[-1]}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        with suppress(OSError):  # a cache is a convenience
            write_text(kept, bundle)
        return bundle


def _as_script(spec: Mapping[str, Any]) -> Any:
    """A spec as JSON inside a script element: no text of a record can end the element."""
    import markupsafe

    return markupsafe.Markup(json.dumps(spec).replace("<", "\\u003c"))  # noqa: S704 - no markup is left in it


def _claim_ids(shown: Sequence[Column]) -> list[str]:
    return sorted({claim_id for column in shown for claim_id in column.record.verdicts})


def _facts(record: RunRecord) -> dict[str, str]:
    """What a reader wants to know of a column."""
    if record.is_stated:
        return {
            "machine": "the chapter's, a laptop GPU with 8 GB",
            "model": record.model.name,
            "figures": "as the chapter states them: no samples, no intervals",
        }
    machine, limits = record.machine, record.roofline
    size = f"{machine.memory_bytes / 2**30:.0f} GiB" if machine.memory_bytes else ""
    gpu = f"{machine.gpu.name}, {machine.gpu.memory_bytes / 2**30:.0f} GiB" if machine.gpu else ""
    bandwidth, peak = limits.memory_bandwidth, limits.peak(record.placement.dtype)
    facts = {
        "machine": machine.name,
        "hardware": ", ".join(part for part in (machine.cpu, f"{machine.num_threads} threads", size, gpu) if part),
        "model": f"{record.model.name} ({record.model.revision})",
        "dtype": f"{record.placement.dtype} on {record.placement.device}",
        "measured limits": f"{bandwidth / 1e9:.1f} GB/s, {peak / 1e9:,.0f} GFLOP/s" if bandwidth and peak else "",
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items()),
        "run": f"{record.started_at}, {record.profile} profile, commit {(record.source.commit or 'unknown')[:12]}",
    }
    return {name: fact for name, fact in facts.items() if fact}


def _card(claim_id: str, shown: Sequence[Column]) -> ClaimCard:
    verdicts = [(column.label, column.record.verdicts.get(claim_id)) for column in shown]
    first = next(verdict for _, verdict in verdicts if verdict)
    lines = [
        line
        for column in shown
        for key, found in column.record.cases.items()
        if found.claim == claim_id
        for line in _case_lines(column, key, found)
    ]
    charts, not_drawn = [], ""
    try:
        charts = figures.charts_of(claim_id, shown)
    except figures.NotDrawnError as error:
        not_drawn = str(error)
    return ClaimCard(claim_id, first.title, first.kind, first.chapter, verdicts, charts, not_drawn, lines)


def _case_lines(column: Column, key: str, found: Measurement) -> Iterator[CaseLine]:
    """A line for the case, and one for each of its laps."""
    counters = ", ".join(f"{name} {value:,.10g}" for name, value in found.counters.items())
    validity = "" if found.validity.is_ok else f"{found.validity.code}: {found.validity.reason}"
    time, limit, samples = _time_cells(column, found.samples_s, found.samples_s, found.bound)
    yield CaseLine(column.label, key, time, found.is_noisy, limit, counters, validity, samples)
    for name, lap in found.laps.items():
        time, limit, samples = _time_cells(column, lap.samples_s, found.lap_by_run_s(name), lap.bound)
        yield CaseLine(column.label, f"{key}: {name}", time, False, limit, "", "", samples)


def _time_cells(
    column: Column, samples_s: Sequence[float], by_run_s: Sequence[float], bound: Bound | None
) -> tuple[str, str, str]:
    """The time with its interval, the limit, and the samples behind both."""
    share = used(bound)
    limit = f"{bound.kind}, {share:.0%} of the limit" if bound and share else ""
    if not samples_s:
        return "", limit, ""
    if column.record.is_stated:
        return f"{median(samples_s) * 1e3:.4g} ms", limit, STATED
    interval = statistics.median([sample * 1e3 for sample in by_run_s])
    return interval.format(".4g", " ms"), limit, samples_in_words(samples_s, shown=len(samples_s))
