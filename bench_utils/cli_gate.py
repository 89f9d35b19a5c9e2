"""The `claims gate` command: what a change costs, breaks and slows down."""

import json
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bench_utils.cli_common import AsJson, errors
from bench_utils.gate.refusal import UNDECIDED
from bench_utils.settings import ChoiceError, from_environ

if TYPE_CHECKING:
    from bench_utils.gate.acceptance import Acceptance
    from bench_utils.gate.options import Options
    from bench_utils.gate.record import GateRecord

_INTERRUPTED = 130


class CannotTell(StrEnum):
    """What becomes of a gate that cannot tell."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105 - no secret


def gate(
    base: Annotated[str | None, typer.Argument(help="The revision to hold against, such as main.")] = None,
    head: Annotated[
        str | None, typer.Argument(help="The revision that is judged; '.' is the working tree. [default: HEAD]")
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(help="A claim (A2) or cases ('A2[cached-*]'); may be repeated. [default: all]"),
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0, help="Minutes for all; 0 only counts. Counting runs to its end in any case.")
    ] = 45.0,
    min_effect: Annotated[
        float | None,
        typer.Option(min=0.1, max=1000, help="Percent slower that matters. [default: the claim's own, else 5]"),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="'<case> <what>: <reason>', as in a trailer Claims-accept of a commit; may be repeated."),
    ] = None,
    cannot_tell: Annotated[CannotTell, typer.Option(help="Whether exit status 4 becomes 0.")] = CannotTell.FAIL,
    records: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Two run records of one machine instead of two revisions."),
    ] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="How often it cries wolf here, and how small a slowdown it sees.")
    ] = False,
    neighbours: Annotated[int, typer.Option(min=0, help="Busy processes beside the self-test.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="More pairs for the newest self-test like this.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="As --claims-model.")] = None,
    device: Annotated[str | None, typer.Option(help="As --claims-device.")] = None,
    dtype: Annotated[str | None, typer.Option(help="As --claims-dtype.")] = None,
    profile: Annotated[str, typer.Option(help="As --claims-profile.")] = "quick",
    claims: Annotated[str, typer.Option(help="The folder of the benchmarks, below this one.")] = "benchmarks",
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request's summary, likewise.")] = False,
    results: Annotated[Path, typer.Option(help="The folder of the machines' records.")] = Path("results"),
) -> None:
    """Hold a change against what was before: what it costs exactly, what it breaks, and what it slows down.

    Both revisions are built in worktrees and environments of their own. Counters (products, kernels, bytes, tokens)
    are compared exactly; times in pairs of fresh processes, more of them where they are undecided, and what seems
    slower is measured again. Every sample is kept below results/<machine>/gate/.

    Exit status: 0 pass, 1 regression, 2 usage, 3 broken benchmark, 4 cannot tell.

    Example: claims gate main --select A2 --select B2
    """
    from bench_utils.gate import markdown as in_markdown
    from bench_utils.gate.options import Options
    from bench_utils.gate.refusal import GateRefusal

    try:
        with errors(), _termination_as_interrupt():
            if as_json and markdown:
                raise ChoiceError("--json and --markdown both want standard output: ask for one")
            chosen = {"model": model, "device": device, "dtype": dtype, "profile": profile}
            options = Options(
                settings=from_environ(chosen=chosen),
                claims=claims,
                select=select or (),
                budget_s=budget * 60,
                min_effect=min_effect / 100 if min_effect else None,
                accepted=_accepted(accept or ()),
                results=results,
            )
            found, path = _found(
                base, head, records, options, self_test=self_test, neighbours=neighbours, resume=resume
            )
    except GateRefusal as refusal:
        if as_json:
            typer.echo(json.dumps({"error": refusal.code, "message": str(refusal), "status": refusal.status}))
        if markdown:
            typer.echo(in_markdown.refusal(refusal.code, str(refusal)), nl=False)
        typer.echo(f"claims gate: {refusal} ({refusal.code})", err=True)
        raise typer.Exit(_status(refusal.status, cannot_tell)) from refusal
    except typer.Exit as ended:
        if as_json:
            typer.echo(json.dumps({"error": "usage", "message": str(ended.__cause__), "status": ended.exit_code}))
        raise
    except KeyboardInterrupt:
        typer.echo(f"claims gate: interrupted; what was measured lies in {results}/<machine>/gate/", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    _tell(found, path, options, as_json=as_json, markdown=markdown)
    raise typer.Exit(_status(found.status or 0, cannot_tell))


def _status(status: int, cannot_tell: CannotTell) -> int:
    return 0 if status == UNDECIDED and cannot_tell is CannotTell.PASS else status


def _found(
    base: str | None,
    head: str | None,
    records: tuple[Path, Path] | None,
    options: "Options",
    *,
    self_test: bool,
    neighbours: int,
    resume: bool,
) -> "tuple[GateRecord, Path | None]":
    """One of the three: a self-test of one revision, two records, or two revisions."""
    from bench_utils.gate import pool, record, run
    from bench_utils.gate.self_test import figures_of

    console = Console(stderr=True)
    num_asked = sum((self_test, records is not None, base is not None and not self_test))
    if num_asked != 1 or (self_test and head):
        raise ChoiceError("say what to judge: BASE [HEAD], or --records A.json B.json, or --self-test [REVISION]")
    if (neighbours or resume) and not self_test:
        raise ChoiceError("--neighbours and --resume are the self-test's: there is no --self-test")
    if options.accepted and self_test:
        raise ChoiceError("--accept is for changes: a self-test has none")
    if self_test and base and Path(base).is_file():
        found = record.read(Path(base))  # an earlier one, to look at
        return replace(found, figures=figures_of(found, options.rule)), Path(base)
    if self_test:
        return pool.take(base, options, console, neighbours, resume=resume)
    if records is not None:
        from bench_utils.gate import two_records

        return two_records.gate(*records, options), None
    assert base is not None
    return run.gate(base, head, options, console)


def _tell(found: "GateRecord", path: Path | None, options: "Options", *, as_json: bool, markdown: bool) -> None:
    from bench_utils.gate import markdown as in_markdown
    from bench_utils.gate import view
    from bench_utils.gate.told import told_of

    told = told_of(found, path, options.results, options.rule)
    if as_json:
        typer.echo(json.dumps(told.as_json(), indent=1, ensure_ascii=False))
    elif markdown:
        typer.echo(in_markdown.render(told), nl=False)
    else:
        view.show(told, Console())


def _accepted(texts: Iterable[str]) -> "list[Acceptance]":
    from bench_utils.gate.acceptance import parse

    return [parse(text) for text in texts]


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """A build server that ends a job asks politely first: then nothing is left behind either."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
