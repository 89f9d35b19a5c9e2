"""A gate in Markdown, for a pull request's summary."""

from collections.abc import Iterator, Sequence

from bench_utils.gate.findings import Finding, Weight
from bench_utils.gate.told import Told
from bench_utils.gate.view import beside, commit_of, run_of, self_test_cells, summary, time_cells
from bench_utils.history.paths import without_paths
from bench_utils.history.report.markdown import plain, row

_MARKS = {"pass": "\N{WHITE HEAVY CHECK MARK}", "regression": "\N{CROSS MARK}", "broken": "\N{CROSS MARK}"}
_UNSURE = "\N{WHITE QUESTION MARK ORNAMENT}"


def render(told: Told) -> str:
    """The verdict first, then what blocks, what else differs, and all times folded away."""
    return "\n".join(_self_test(told) if told.found.kind == "self-test" else _gate(told)) + "\n"


def refusal(code: str, message: str) -> str:
    """What a summary says where nothing could be judged."""
    return f"## {_UNSURE} claims gate: no verdict\n\n{plain(without_paths(message))} ({plain(code)})\n"


def _gate(told: Told) -> Iterator[str]:
    found = told.found
    yield f"## {_MARKS.get(found.verdict, _UNSURE)} claims gate: {found.verdict}"
    yield ""
    yield plain(f"{commit_of(found.base)} to {commit_of(found.head)} on {found.machine.name}, {run_of(found)}")
    for weight in Weight:
        yield from _findings(weight.value, [each for each in found.findings if each.weight is weight])
    yield ""
    yield from (f"- {plain(line)}" for line in summary(told))
    if found.times:
        yield from ("", f"<details><summary>{len(found.times)} times</summary>", "")
        yield from _table(
            ["case", f"head / base, {1 - 2 * told.level:.0%} interval", "pairs", "matters", "sees", ""]
        )
        yield from (row([key, *time_cells(each, found.min_effects[key])]) for key, each in found.times.items())
        yield from ("", "</details>")


def _findings(title: str, found: Sequence[Finding]) -> Iterator[str]:
    if found:
        yield from ("", f"### {title}", "", *_table(["case", "in", "", "accepted"]))
        yield from (row([each.key, each.what, without_paths(each.told), each.accepted]) for each in found)


def _self_test(told: Told) -> Iterator[str]:
    found = told.found
    yield plain(f"{found.machine.name}: {len(found.min_effects)} cases, {len(found.pairs)} pairs{beside(found)}")
    yield ""
    slowdowns = told.figures[0].seen if told.figures else []
    yield from _table(["rule", "false alarms", *(f"sees {slower} slower" for slower in slowdowns)])
    yield from (row(self_test_cells(each)) for each in told.figures)


def _table(columns: Sequence[str]) -> Iterator[str]:
    yield row(columns)
    yield row(["---"] * len(columns), is_rule=True)
