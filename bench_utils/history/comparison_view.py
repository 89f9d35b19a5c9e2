"""A comparison in a terminal: what the sides are, verdicts that differ first, then figures, times and counters."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench_utils.history.compare import CasePair, ClaimPair, Comparison, TimePair
from bench_utils.history.entries import Figure, VerdictEntry
from bench_utils.history.selection import Loaded, about
from bench_utils.measure.statistics import Interval

# More laps than these are shown when asked for.
_FEW_LAPS, _FEW_CASES = 4, 6
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def overview(found: Sequence[Loaded]) -> Table:
    """A line for each record."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("machine", "started", "model", "dtype", "profile", "cases", "finished", "file"):
        table.add_column(column, overflow="fold")
    for each in found:
        record = each.record
        cells = (record.machine.name, record.started_at, record.model.name, record.placement.dtype, record.profile)
        finished = "yes" if record.is_finished else f"{len(record.cases)} of {len(record.planned)}"
        table.add_row(*map(Text, (*cells, str(len(record.cases)), finished, each.path.name)))
    return table


def show(a: Loaded, b: Loaded, found: Comparison, console: Console, *, all_laps: bool = False) -> None:
    """All of it; cells are plain text."""
    console.print(_sides(a, b))
    if found.unlike:
        console.print(Text(f"\nunlike: {'; '.join(found.unlike)}: no case is called faster or slower"))
    console.print(_verdicts(found))
    console.print(Text("\n* below six samples the interval is the whole range; one sample has none"))
    for claim in found.claims:
        rows = [*_figures(claim), *(row for case in claim.cases for row in _case(case, all_laps))]
        if rows:
            console.print(_table(claim, rows))
    cases = [case for claim in found.claims for case in claim.cases]
    num_equal = sum(case.num_equal_counters for case in cases)
    console.print(Text(f"\n{num_equal:,} counters are equal on both sides"))
    reasons: dict[str, list[str]] = {}
    for case in cases:
        for reason in (case.unlike,) if case.unlike else case.one_sided:
            reasons.setdefault(reason, []).append(case.key)
    for reason, keys in reasons.items():
        shown = ", ".join(keys[:_FEW_CASES]) + (
            f" and {len(keys) - _FEW_CASES} more" if len(keys) > _FEW_CASES else ""
        )
        console.print(Text(f"not compared, {reason}: {shown}"), soft_wrap=True)


def _sides(a: Loaded, b: Loaded) -> Table:
    table = Table("", "A", "B", box=None, padding=(0, 2, 0, 0))
    one, other = about(a), about(b)
    for field, value in one.items():
        table.add_row(field, *(Text(_plain(field, side)) for side in (value, other[field])))
    return table


def _plain(field: str, value: Any) -> str:
    if value is None:
        return "-"
    if field.endswith("_per_s"):
        return f"{value / 1e9:,.1f} {'GB/s' if 'bytes' in field else 'GFLOP/s'}"
    return str(value)


def _verdicts(found: Comparison) -> Table:
    table = Table("claim", "A", "B", "", title="\nVerdicts", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for claim in found.claims:
        title = next((side.title for side in (claim.a, claim.b) if side), "")
        cells = (f"{claim.id} {title}", _outcome(claim.a), _outcome(claim.b), "differs" if claim.differs else "")
        table.add_row(*map(Text, cells), style="bold" if claim.differs else "")
    return table


def _outcome(verdict: VerdictEntry | None) -> str:
    return verdict.outcome if verdict else "not run"


def _table(claim: ClaimPair, rows: list[tuple[str, ...]]) -> Table:
    columns = ("", "A", "B", "B / A [95 %]*", "by rooflines", "limit used, A", "B")
    table = Table(*columns, title=f"\n{claim.id}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _figures(claim: ClaimPair) -> Iterator[tuple[str, ...]]:
    for name, (one, other) in claim.figures.items():
        yield (name, _figure(one), _figure(other), "", "", "", "")


def _figure(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return f"{figure.value:.4g}"
    return Interval(figure.value, figure.low, figure.high).format(".4g")


def _case(case: CasePair, all_laps: bool) -> Iterator[tuple[str, ...]]:
    laps = [pair for pair in case.times if pair.name]
    for pair in case.times:
        if not pair.name or all_laps or len(laps) <= _FEW_LAPS:
            yield _time(case.key, pair)
    if len(laps) > _FEW_LAPS and not all_laps:
        yield (f"{case.key}: {len(laps)} laps more, see --laps", "", "", "", "", "", "")
    for counter in case.counters:
        yield (f"{case.key}: {counter.name}", f"{counter.a:,.10g}", f"{counter.b:,.10g}", "", "", "", "")


def _time(key: str, pair: TimePair) -> tuple[str, ...]:
    return (
        f"{key}: {pair.name}" if pair.name else key,
        *(_seconds(side) for side in (pair.a_s, pair.b_s)),
        _with_interval(pair.b_over_a, ".2f", "x"),
        f"{pair.predicted:.2f}x" if pair.predicted else "-",
        *(f"{share:.0%}" if share else "-" for share in (pair.used_a, pair.used_b)),
    )


def _seconds(interval: Interval) -> str:
    scale, unit = next((each for each in _UNITS if interval.value >= each[0]), _UNITS[-1])
    scaled = Interval(interval.value / scale, interval.low / scale, interval.high / scale)
    return _with_interval(scaled, ".3g", f" {unit}")


def _with_interval(interval: Interval, spec: str, unit: str) -> str:
    """A single figure has no interval."""
    is_single = interval.low == interval.high
    return f"{interval.value:{spec}}{unit}" if is_single else interval.format(spec, unit)
