"""What the terminal shows: the scoreboard's cells, the progress with its time left, and no colours in a file."""

import io

import pytest
from rich.console import Console

from bench_utils import scoreboard
from bench_utils.measure.measurement import Bound
from bench_utils.progress import CaseProgress, FetchProgress
from bench_utils.verdict import Outcome, Verdict


def console(*, terminal=False, width=150):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, highlight=False)


def test_a_line_holds_the_chapters_figure_and_the_one_measured_here():
    out = console()
    verdict = Verdict(Outcome.HOLDS, "8.1x [7.9, 8.3]", predicted="9x", bound="memory (70% of bandwidth)")
    scoreboard.show([scoreboard.Line("A2", "faster", "9x over 48 tokens", verdict)], "a caption", out)
    text = out.file.getvalue()
    for words in (
        "A2 faster",
        "9x over 48 tokens",
        "8.1x [7.9, 8.3]; predicted 9x",
        "memory (70%",
        "holds",
        "a caption",
    ):
        assert words in text
    assert "\x1b[" not in text


def test_markup_in_a_cell_is_shown_not_obeyed():
    out = console()
    verdict = Verdict(Outcome.INVALID, reason="[red]boom[/red] [/]")
    scoreboard.show([scoreboard.Line("[bold]X", "t", "[/]", verdict)], "[b]", out)
    assert "[red]boom[/red] [/]" in out.file.getvalue()


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_its_words_and_its_style_on_a_terminal(outcome):
    out = console(terminal=True)
    scoreboard.show([scoreboard.Line("X", "t", "", Verdict(outcome))], "", out)
    assert outcome.value.split()[0] in out.file.getvalue()
    assert "\x1b[" in out.file.getvalue()


def test_progress_without_a_terminal_is_a_line_a_case_with_the_time_left():
    out = console()
    progress = CaseProgress(out, {"A": 0.0, "B": 0.0, "C": 120.0})
    progress.begin("A")
    progress.end("A", "ok", 4.0)
    progress.end("B", "noisy", 6.0)
    progress.end("C", "ok", 100.0)
    lines = out.file.getvalue().splitlines()
    assert lines == [
        "  1/3 A ok 4.0 s (about 2 min left)",  # 120 s known and 4 s guessed from the pace
        "  2/3 B noisy 6.0 s (about 2 min left)",
        "  3/3 C ok 100.0 s",
    ]


def test_a_machine_twice_as_slow_as_the_record_is_told_so():
    out = console()
    progress = CaseProgress(out, {"A": 10.0, "B": 30.0})
    progress.end("A", "ok", 20.0)
    assert "about 60 s left" in out.file.getvalue()


def test_progress_on_a_terminal_is_one_bar_that_goes_away():
    out = console(terminal=True)
    progress = CaseProgress(out, {"A2[cached-48]": 5.0, "B": 7.0})
    progress.begin("A2[cached-48]")
    progress.end("A2[cached-48]", "ok", 5.0)
    progress.begin("B")
    progress.close()
    text = out.file.getvalue()
    assert "A2[cached-48]" in text  # not taken for markup
    assert "1/2" in text
    assert "about 7 s left" in text


def test_a_fetch_tells_how_much_came():
    out = console()
    with FetchProgress(out) as progress:
        progress.update(1_000)
        progress.update(234)
    assert "fetched 1,234 B from the package index" in out.file.getvalue()


def test_a_bound_names_the_limit_it_is_nearest_to():
    assert str(Bound("memory", 0.7, 0.1)) == "memory (70% of bandwidth)"
    assert str(Bound("overhead", None, 0.04)) == "overhead (4% of peak)"
    assert str(Bound("not assessed")) == "not assessed"
