"""The `claims` command: list what is claimed, examine the machine, fetch what is needed, say what fits.

What it does with records lies in cli_history.
"""

import io
import json
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench_utils import cli_gate, cli_history
from bench_utils.cli_common import AsJson, errors
from bench_utils.settings import ChoiceError, Settings, from_environ

app = typer.Typer(
    help="Every claim about cheap LLM inference as one benchmark. Run them with "
    "`pytest benchmarks --benchmark-only`; track them with `asv run`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(help="The folder of the benchmarks.")]
Model = Annotated[str | None, typer.Option(help="smollm2, qwen2.5-0.5b-shape, a hub id, a folder or a .gguf file.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")]
Dtype = Annotated[str | None, typer.Option(help="auto, float64, float32, bfloat16 or float16.")]


# A number of tokens or users that no machine holds, and small enough to count with.
MOST = 10**9
BUG = 70  # as sysexits.h has it: no command answers with it


@app.command("list")
def list_claims(folder: Folder = Path("benchmarks"), as_json: AsJson = False) -> None:
    """Print the ledger of claims found in the benchmark files.

    Example: claims list --json | jq '.claims[].id'
    """
    from bench_utils.discovery import find_claims

    with errors():
        claims, broken = find_claims(folder)
    if as_json:
        document = {
            "claims": [
                {
                    "id": claim.id,
                    "title": claim.title,
                    "kind": claim.kind,
                    "chapter": claim.chapter,
                    "module": claim.__module__,
                    "class": claim.__name__,
                    "num_cases": len(claim.cases()),
                    "params": dict(zip(claim.param_names, claim.params, strict=True)),
                    "tracked": dict(claim.tracked),
                    "min_effect": claim.min_effect,
                }
                for claim in claims
            ],
            "broken": [vars(module) for module in broken],
        }
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        table = Table("id", "claim", "kind", "cases", "chapter", box=None, padding=(0, 2, 0, 0))
        for claim in claims:
            cells = (claim.id, claim.title, claim.kind, str(len(claim.cases())), claim.chapter)
            table.add_row(*(Text(cell) for cell in cells))
        Console().print(table)
        for module in broken:
            Console(stderr=True).print(Text(f"cannot be imported: {module.module}: {module.error}"))
    if broken:
        raise typer.Exit(1)


@app.command()
def doctor(model: Model = None, device: Device = None, dtype: Dtype = None) -> None:
    """Examine this machine: limits, noise, GPU, assets, the harness's own cost, and what would be skipped."""
    from bench_utils import doctor as examination

    with errors():
        settings = _settings(model=model, device=device, dtype=dtype)
        examination.examine(settings, Console())


@app.command()
def fetch(model: Model = None) -> None:
    """Get the assets once, and convert the model, so that every later run works offline."""
    from bench_utils.models import assets, catalog, sources
    from bench_utils.progress import FetchProgress

    console = Console()
    with errors():
        settings = _settings(model=model)
        catalog.resolve(settings.model)  # a mistyped name is told at once
        for asset in assets.ASSETS:
            path = assets.ensure(asset, progress=FetchProgress(console))
            console.print(Text(f"{asset.name}: {path}"), soft_wrap=True)
        sources.prepare(settings.model, FetchProgress(console))
        console.print(Text(f"the model {settings.model} is ready"))


@app.command()
def fit(
    model: Annotated[
        str | None,
        typer.Option(help="7b, 13b or 70b (the chapter's), or any model: a config is enough, no weights are read."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="What there is: 8GiB is 2^30 bytes each, 8GB 10^9. A card of '8 GB' holds 8GiB."),
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="What is free on this machine's GPU now.")] = False,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="fp32, fp16, int8, nf4 or int4; may be repeated. [default: all]"),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Tokens that each user has. [default: any]")
    ] = None,
    users: Annotated[int, typer.Option(min=1, max=MOST, help="How many at once.")] = 1,
    reserve: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Without paging: tokens reserved for each user. They must fit then."),
    ] = None,
    block: Annotated[int, typer.Option(min=1, max=MOST, help="Tokens a block of a paged cache.")] = 16,
    overhead: Annotated[
        str, typer.Option(help="What a server needs besides weights and cache; H2 measures yours.")
    ] = "1.5GiB",
    as_json: AsJson = False,
) -> None:
    """Say how much context fits, for how many users at once, in which format. Exit status 1: the load fits in none.

    Example: claims fit --model 7b --memory 8GiB --context 4096 --users 4
    """
    from bench_utils import fit as answering
    from bench_utils import sizes

    with errors():
        if gpu == bool(memory):
            raise ChoiceError("give either --memory, such as --memory 8GiB, or --gpu for what is free on this GPU")
        available = answering.Memory(sizes.parse(memory), memory) if memory else answering.gpu_memory(_settings())
        overhead_bytes = sizes.parse(overhead, least=0)
        load = answering.Load(users, context, reserve, block)
        size = answering.model_of(_settings(model=model).model)
        rows = answering.answer(
            size, available.num_bytes, overhead_bytes, answering.formats_of(formats or []), load
        )
    if as_json:
        document = answering.as_json(size, available, overhead_bytes, load, rows)
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        answering.show(size, available, overhead_bytes, load, rows, Console())
    if not any(row.fits for row in rows):
        raise typer.Exit(1)


def _settings(**chosen: str | None) -> Settings:
    for name, value in chosen.items():
        if value is not None and not value.strip():  # such as an unset variable of a shell
            raise ChoiceError(f"--{name} is empty")
    return from_environ(chosen=chosen)


cli_history.add_to(app)
app.command()(cli_gate.gate)


def main() -> Any:
    """The entry point. A bug has an exit status of its own, so that it passes for no answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal's encoding lacks
    try:
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(BUG)
