"""The scoreboard in Markdown, for a pull request's summary."""

import re
from collections.abc import Iterable, Sequence

from bench_utils.history.report.columns import Column, Columns

# What Markdown or HTML would take for more than text.
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>#|~&@])")


def render(columns: Columns, refused: Iterable[str] = ()) -> str:
    """A table with a row for each claim, verdicts that differ between the columns in bold."""
    shown = [column for column in columns.shown if not column.record.is_stated]
    lines = [
        *_about(shown),
        "",
        row(["claim", "chapter, laptop 8 GB", *(column.label for column in shown)]),
        row(["---"] * (2 + len(shown)), is_rule=True),
        *(_claim(claim_id, shown) for claim_id in sorted({key for each in shown for key in each.record.verdicts})),
    ]
    told = list(refused)
    return "\n".join([*lines, *(["", *(f"- left out: {plain(reason)}" for reason in told)] if told else [])]) + "\n"


def plain(text: str) -> str:
    """A text that means itself in Markdown."""
    return _ACTIVE.sub(r"\\\1", " ".join(text.split()))


def _about(shown: Sequence[Column]) -> list[str]:
    lines = []
    for column in shown:
        record, placement = column.record, column.record.placement
        commit = (record.source.commit or "unknown")[:12]
        facts = (record.model.name, f"{placement.dtype} on {placement.device}", f"{record.profile} profile")
        lines.append(
            f"- **{plain(column.label)}**: {plain(', '.join((*facts, record.started_at, f'commit {commit}')))}"
        )
    return lines


def _claim(claim_id: str, shown: Sequence[Column]) -> str:
    verdicts = [column.record.verdicts.get(claim_id) for column in shown]
    first = next(verdict for verdict in verdicts if verdict)
    differs = len({verdict.outcome for verdict in verdicts if verdict}) > 1
    cells = []
    for verdict in verdicts:
        told = plain(verdict.outcome) if verdict else "not run"
        outcome = f"**{told}**" if verdict and differs else told
        cells.append(outcome + (f": {plain(verdict.measured or verdict.reason)}" if verdict else ""))
    return row([f"**{plain(claim_id)}** {plain(first.title)}", plain(first.chapter), *cells], is_rule=True)


def row(cells: Sequence[str], *, is_rule: bool = False) -> str:
    """A row of a table; a rule, or cells that are Markdown already, stay as they are."""
    return "| " + " | ".join(cells if is_rule else map(plain, cells)) + " |"
