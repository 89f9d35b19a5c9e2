"""The scoreboard as text: nothing of a verdict is cut off, and its picture follows the table."""

from io import StringIO

from rich.console import Console

from bench_utils.scoreboard import Line, show
from bench_utils.verdict import Outcome, Verdict


def shown(verdict, width=80):
    console = Console(file=StringIO(), width=width)
    show([Line("D2", "granularity", "0.99", verdict)], "the caption", console)
    return console.file.getvalue()


def test_a_word_longer_than_its_column_is_folded_not_cut():
    name = "model.layers.27.self_attn.a_very_long_projection_name_indeed"
    text = shown(Verdict(Outcome.HOLDS, measured=f"worst ({name}); then more"))
    header = next(line for line in text.splitlines() if "measured" in line)
    start, end = header.index("measured"), header.index("bound")
    column = "".join(line[start:end].strip() for line in text.splitlines())
    assert "…" not in text
    assert f"({name});" in column.replace(" ", "")


def test_a_picture_follows_the_table_and_keeps_its_lines():
    text = shown(Verdict(Outcome.HOLDS, picture="a histogram\n  0 - 1 | ## 2 [x]\n  1 - 2 | # 1"))
    assert "D2 a histogram\n  0 - 1 | ## 2 [x]\n  1 - 2 | # 1\n" in text
    assert text.index("holds") < text.index("a histogram") < text.index("the caption")


def test_claims_about_schemes_fill_one_table_together():
    console = Console(file=StringIO(), width=120)
    lines = [
        Line("E1", "perplexity", "", Verdict(Outcome.HOLDS, by_scheme={"int8 row": {"perplexity": "32.4"}})),
        Line("D6", "speed", "", Verdict(Outcome.HOLDS, by_scheme={"int8 row": {"ms": "22"}, "NF4": {"ms": "24"}})),
    ]
    show(lines, "the caption", console)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["scheme", "ms", "perplexity"] in rows, "whoever knows most schemes comes first"
    assert ["int8", "row", "22", "32.4"] in rows
    assert ["NF4", "24", "-"] in rows


def test_without_schemes_there_is_no_table_of_them():
    assert "scheme" not in shown(Verdict(Outcome.HOLDS))
