"""What every `claims` command shares: how errors are told, and options of one meaning."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from bench_utils.settings import ChoiceError, NotApplicableError

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable, on standard output.")]


@contextmanager
def errors() -> Iterator[None]:
    """Known failures as one clear message and exit status 2; anything else is a bug and shows itself."""
    from bench_utils.history.schema import RecordError
    from bench_utils.models.errors import AssetError, ModelLoadError

    known = (ChoiceError, NotApplicableError, AssetError, ModelLoadError, RecordError)
    try:
        yield
    except (*known, MemoryError, OSError) as error:
        typer.echo(f"claims: {error}", err=True)
        raise typer.Exit(2) from error
