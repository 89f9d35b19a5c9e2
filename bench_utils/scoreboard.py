"""The scoreboard: one line a claim, the chapter's figure beside the one measured here."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench_utils import pictures
from bench_utils.verdict import Outcome, Verdict

CHAPTER_MACHINE = "chapter, laptop 8 GB"
_STYLES = {
    Outcome.HOLDS: "green",
    Outcome.DOES_NOT_HOLD: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NOT_APPLICABLE: "dim",
    Outcome.INVALID: "magenta",
}


@dataclass(frozen=True)
class Line:
    """One claim on the scoreboard."""

    id: str
    title: str
    chapter: str
    verdict: Verdict


def render(lines: Sequence[Line], caption: str) -> RenderableType:
    """The table; every cell is plain text, so nothing in it can act as markup."""
    table = Table(box=box.SIMPLE_HEAD, title="Scoreboard", title_justify="left", pad_edge=False)
    table.add_column("claim", ratio=28, overflow="fold")
    table.add_column(CHAPTER_MACHINE, ratio=20, overflow="fold")
    table.add_column("measured here [95 % interval]".replace("[", "\\["), ratio=32, overflow="fold")
    table.add_column("bound by", ratio=14, overflow="fold")
    table.add_column("verdict", ratio=14, overflow="fold")
    table.expand = True
    for line in lines:
        verdict = line.verdict
        measured = verdict.measured
        if verdict.predicted:
            measured += f"; predicted {verdict.predicted}"
        if verdict.reason:
            measured = f"{measured}; {verdict.reason}" if measured else verdict.reason
        table.add_row(
            Text.assemble((line.id, "bold"), " ", line.title),
            Text(line.chapter or "-"),
            Text(measured or "-"),
            Text(verdict.bound or "-"),
            Text(verdict.outcome.value, style=_STYLES[verdict.outcome]),
        )
    drawn = [
        Text.assemble("\n", (line.id, "bold"), " ", line.verdict.picture) for line in lines if line.verdict.picture
    ]
    if schemes := by_scheme(lines):
        drawn.append(Text(f"\n{schemes}"))
    return Group(table, *drawn, Text(caption, style="dim"))


def by_scheme(lines: Sequence[Line]) -> str:
    """What several claims say of the same schemes, as one table; '' where none says anything."""
    rows: dict[str, dict[str, str]] = {}
    # Whoever knows most schemes says in which order they stand.
    for line in sorted(lines, key=lambda line: -len(line.verdict.by_scheme)):
        for scheme, cells in line.verdict.by_scheme.items():
            rows.setdefault(scheme, {}).update(cells)
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    filled = [[scheme, *(cells.get(column, "-") for column in columns)] for scheme, cells in rows.items()]
    return pictures.table(["scheme", *columns], filled) if rows else ""


def show(lines: Sequence[Line], caption: str, console: Console) -> None:
    """Print the scoreboard."""
    console.print(render(lines, caption))
