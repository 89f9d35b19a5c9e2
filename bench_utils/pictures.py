"""Text to look at below the scoreboard."""

from collections.abc import Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Nothing is cut: a terminal that is narrower folds the line.
_WIDEST = 1_000


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text: the first column to the left, figures to the right."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        drawn.add_column(Text(name), justify="right" if index else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*map(Text, row))
    page = StringIO()
    Console(file=page, width=_WIDEST, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())
