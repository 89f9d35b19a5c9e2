"""The `claims` commands about machines and records: machine, records, compare, report."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench_utils.cache import write_text
from bench_utils.cli_common import AsJson, errors
from bench_utils.history.schema import RecordError
from bench_utils.settings import from_environ

records_app = typer.Typer(
    help="List, validate and migrate run records.", no_args_is_help=True, rich_markup_mode=None
)

Results = Annotated[Path, typer.Option(help="The folder of the machines' records.")]
Names = Annotated[list[str] | None, typer.Argument(help="Files, folders or machines. [default: all]")]


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `claims`."""
    app.command()(machine)
    app.command()(compare)
    app.command()(report)
    app.add_typer(records_app, name="records")


def machine(
    name: Annotated[str | None, typer.Option(help="A name of yours. [default: made from the hardware]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
) -> None:
    """Describe this machine to asv, with its GPU and CUDA as axes of every graph, under a name that is no host's.

    Example: claims machine --name my-laptop && asv run --machine my-laptop HEAD^!
    """
    from bench_utils import asv_machine

    with errors():
        settings = from_environ(chosen={"device": device, "machine": name})
        entry = asv_machine.entry_of(settings)
        asv_machine.save(entry)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for field, value in entry.items():
        table.add_row(field, Text(value))
    Console().print(table)
    typer.echo(f"\nasv knows it now: asv run --machine {entry['machine']} HEAD^!")


def compare(
    a: Annotated[str, typer.Argument(help="A record, or a folder or machine, whose newest finished one is taken.")],
    b: Annotated[str, typer.Argument(help="Another one. `chapter-laptop-8gb` has the chapter's own figures.")],
    laps: Annotated[bool, typer.Option("--laps", help="Show every lap of cases that have many.")] = False,
    as_json: AsJson = False,
    results: Results = Path("results"),
) -> None:
    """Compare two records, claim by claim and same case by same case, beside what their rooflines predict.

    Claims whose verdict differs come first. Unlike cases are named and not compared.

    Example: claims compare my-laptop chapter-laptop-8gb
    """
    from bench_utils.history import comparison_view, selection
    from bench_utils.history.compare import compare as held_against

    with errors():
        (one, refused), (other, refused_too) = (selection.newest(name, results) for name in (a, b))
        found = held_against(one.record, other.record)
    if as_json:
        sides = {side: selection.about(each) for side, each in (("a", one), ("b", other))}
        claims = [{**asdict(claim), "differs": claim.differs} for claim in found.claims]
        document = {**sides, "unlike": found.unlike, "claims": claims}
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        comparison_view.show(one, other, found, Console(), all_laps=laps)
    _leave_out((*refused, *refused_too))


def report(
    names: Names = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a scoreboard in Markdown instead.")] = False,
    results: Results = Path("results"),
) -> None:
    """Write one HTML page that opens offline: scoreboard, plots, machines side by side, samples on hover.

    Of each machine, model and dtype the newest finished record is shown. Exit status 1: some could not be read.

    Example: claims report my-laptop chapter-laptop-8gb && open report.html
    """
    from bench_utils.history import selection
    from bench_utils.history.report import columns
    from bench_utils.history.report import markdown as in_markdown

    refused: list[str] = []
    with errors():
        found = columns.collect(selection.read_each(selection.find(names or [], results), refused))
        if not found.shown:
            raise RecordError("; ".join(refused) or "no record is finished: finish one with --claims-resume")
        if markdown:
            typer.echo(in_markdown.render(found, refused), nl=False)
        else:
            from bench_utils.history.report import page

            write_text(output, page.render(found, refused))
            typer.echo(f"{output}: {len(found.shown)} of {len(found.overview)} records side by side")
    _leave_out(refused)


@records_app.command("list")
def list_records(names: Names = None, as_json: AsJson = False, results: Results = Path("results")) -> None:
    """List records: when, on which machine, what was measured. Exit status 1: some could not be read."""
    from bench_utils.history import comparison_view, selection

    with errors():
        found = selection.select(names or [], results)
    if as_json:
        typer.echo(json.dumps([selection.about(each) for each in found.loaded], indent=1, ensure_ascii=False))
    else:
        Console().print(comparison_view.overview(found.loaded))
    _leave_out(found.refused)


@records_app.command()
def validate(names: Names = None, results: Results = Path("results")) -> None:
    """Check records against the schema and their seals. Exit status 1: some are not valid, and why."""
    from bench_utils.history import selection

    with errors():
        found = selection.select(names or [], results)
    typer.echo(f"{len(found.loaded)} valid")
    _leave_out(found.refused)


@records_app.command()
def migrate(names: Names = None, results: Results = Path("results")) -> None:
    """Rewrite records of older versions as today's, sealed. What cannot be read is named and stays as it is."""
    from bench_utils.history import records, schema, selection

    with errors():
        found = selection.select(names or [], results)
        older = [each for each in found.loaded if schema.version_of(each.path.read_text("utf-8")) < schema.VERSION]
        for each in older:
            records.write(each.record, each.path)
            typer.echo(f"{each.path.parent.name}/{each.path.name} is of version {schema.VERSION} now")
    typer.echo(f"{len(older)} migrated, {len(found.loaded) - len(older)} were of version {schema.VERSION} already")
    _leave_out(found.refused)


@records_app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of a record."""
    from bench_utils.history import schema

    typer.echo(json.dumps(schema.json_schema(), indent=1))


@records_app.command("chapter")
def write_chapter(
    folder: Annotated[Path, typer.Argument(help="The folder of the benchmarks.")] = Path("benchmarks"),
    results: Results = Path("results"),
) -> None:
    """Write the chapter's own figures, as the claims state them, as the record of its machine."""
    from bench_utils import chapter
    from bench_utils.discovery import find_claims
    from bench_utils.history import records

    with errors():
        claims, broken = find_claims(folder)
        path = results / chapter.MACHINE_NAME / chapter.FILE_NAME
        records.write(chapter.chapter_record(claims), path)
    typer.echo(f"{path} has {len(claims)} claims")
    _leave_out([f"{module.module} cannot be imported: {module.error}" for module in broken])


def _leave_out(refused: Iterable[str]) -> None:
    """Name what could not be used, once the rest is told; exit status 1 where there is any."""
    told = list(dict.fromkeys(refused))
    for reason in told:
        Console(stderr=True).print(Text(f"left out: {reason}"), soft_wrap=True)
    if told:
        raise typer.Exit(1)
