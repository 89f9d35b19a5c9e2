"""A gate in a terminal: what blocks, what else differs, every time with its interval, and the verdict last."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench_utils.gate.acceptance import TRAILER, word_of
from bench_utils.gate.figures import Figures, Share
from bench_utils.gate.findings import Finding, Weight
from bench_utils.gate.record import GateRecord
from bench_utils.gate.rule import Judged
from bench_utils.gate.self_test import noise
from bench_utils.gate.told import Told
from bench_utils.history.entries import SourceState

_STYLES = {"pass": "bold green", "regression": "bold red", "broken": "bold red", "cannot tell": "bold yellow"}


def show(told: Told, console: Console) -> None:
    """All of it; what comes from a claim is plain text."""
    console.print(_about(told.found))
    if told.found.kind == "self-test":
        console.print(_self_test(told))
        console.print(_noise(told.found))
    else:
        for title, found in _groups(told.found.findings):
            if found:
                console.print(_findings(title, found))
        if told.found.times:
            console.print(_times(told))
        console.print(Text("\n" + "\n".join(summary(told))), soft_wrap=True)
        console.print(Text(f"verdict: {told.found.verdict}", style=_STYLES.get(told.found.verdict, "")))
    if told.path:
        console.print(Text(f"every sample: {told.path}"), soft_wrap=True)


def summary(told: Told) -> Iterator[str]:
    """Lines of what was compared, how to accept what blocks, and what the machine's self-test says."""
    found = told.found
    times = found.times.values()
    pairs = f"in {len(found.pairs)} pairs" if found.pairs else "once a side"
    timed = f"{len(times)} of them timed {pairs}" if times else "and nothing timed"
    skipped = f"; {found.num_skipped} more mean nothing here or fail" if found.num_skipped else ""
    yield f"{found.num_compared} cases compared, {timed}{skipped}"
    decided = [each.sees for each in times if each.sees is not None]
    if decided:
        best, worst = f"{min(decided):.0%}", f"{max(decided):.0%}"
        yield f"a slowdown of {best} would have been seen in the steadiest of these cases, of {worst} in all"
    blocking = next((finding for finding in found.findings if finding.blocks), None)
    if blocking:
        yield (
            "where it is meant, a commit message of the same change accepts it with a line such as\n"
            f"    {TRAILER}: {blocking.key} {word_of(blocking)}: <why>"
        )
    yield from trust(told)


def trust(told: Told) -> Iterator[str]:
    """What the newest self-test of this machine says of verdicts like this one."""
    if not told.found.pairs:
        return
    if not told.figures or told.test is None:
        yield "how far this machine's verdicts can be trusted is not known: run `claims gate --self-test`"
        return
    own = told.figures[0]
    seen = ", ".join(f"{by} slower in {share_of(share)}" for by, share in own.seen.items())
    yield f"this machine's self-test of {told.test.started_at}: false alarms in {share_of(own.alarms)}; sees {seen}"


def share_of(share: Share) -> str:
    """'3 of 40 [2%, 20%]'."""
    interval = share.interval
    within = f" [{interval.low:.0%}, {interval.high:.0%}]" if interval else ""
    return f"{share.num} of {share.out_of}{within}"


def commit_of(state: SourceState) -> str:
    """A commit in short, and whether the tree differed from it."""
    return (state.commit or "unknown")[:12] + (" and changes on top" if state.is_dirty else "")


def run_of(found: GateRecord) -> str:
    """The model, and how and where it ran."""
    return f"{found.model} in {found.dtype} on {found.device}, {found.profile} profile"


def beside(found: GateRecord) -> str:
    """What else ran during a self-test."""
    return f", beside {found.num_neighbours} busy processes" if found.num_neighbours else ""


def _about(found: GateRecord) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    rows = [("base", commit_of(found.base)), ("head", commit_of(found.head))]
    if found.kind == "self-test":
        rows = [("revision", commit_of(found.head)), ("pairs", f"{len(found.pairs)}{beside(found)}")]
    rows.append(("machine", found.machine.name))
    rows.append(("run", run_of(found)))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _groups(findings: Sequence[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    for weight in Weight:
        found = [finding for finding in findings if finding.weight is weight]
        yield weight.value, [finding for finding in found if not finding.accepted]
        yield f"{weight.value}, accepted", [finding for finding in found if finding.accepted]


def _findings(title: str, found: Sequence[Finding]) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for finding in found:
        told = f"{finding.told} (accepted: {finding.accepted})" if finding.accepted else finding.told
        table.add_row(*map(Text, (finding.key, finding.what, told)))
    return table


def _times(told: Told) -> Table:
    interval = f"head / base [{1 - 2 * told.level:.0%}]"
    table = Table(title="\ntimes", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("case", interval, "pairs", "matters", "sees", ""):
        table.add_column(column, overflow="fold")
    for key, each in told.found.times.items():
        table.add_row(*map(Text, (key, *time_cells(each, told.found.min_effects[key]))))
    return table


def time_cells(judged: Judged, min_effect: float) -> tuple[str, ...]:
    """The ratio with its interval, the number of pairs, what matters, what would have been seen, and the state."""
    ratio = judged.ratio.format(".3f") if judged.ratio else "-"
    sees = f"{judged.sees:+.0%}" if judged.sees is not None else "-"
    return ratio, str(judged.num_pairs), f"{min_effect:+.0%}", sees, judged.state.value


def _self_test(told: Told) -> Table:
    table = Table(title="\non identical code, and one case made slower", title_justify="left", box=None)
    slowdowns = list(told.figures[0].seen) if told.figures else []
    table.add_column("", overflow="fold")
    table.add_column("false alarms")
    for slower in slowdowns:
        table.add_column(f"sees {slower}")
    for each in told.figures:
        table.add_row(*map(Text, self_test_cells(each)))
    return table


def self_test_cells(figures: Figures) -> list[str]:
    """A rule's row: false alarms, and how often each slowdown is seen, or at least does not pass."""
    cells = [figures.name, share_of(figures.alarms)]
    for slower, seen in figures.seen.items():
        unsure = figures.undecided[slower].num
        cells.append(share_of(seen) + (f", {unsure} more cannot tell" if unsure else ""))
    if figures.undecided_runs.num:
        cells[1] += f", {figures.undecided_runs.num} runs cannot tell"
    return cells


def _noise(found: GateRecord) -> Table:
    table = Table("case", "a pair of identical code differs by", title="\nnoise", title_justify="left", box=None)
    for key, share in noise(found).items():
        table.add_row(Text(key), f"{share:.1%}")
    return table
