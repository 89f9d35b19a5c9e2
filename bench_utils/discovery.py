"""Finding the claims of a benchmark folder, without any list of them."""

import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench_utils.claim import Claim


class NoBenchmarksError(FileNotFoundError):
    """There is no folder of benchmarks where one was looked for."""


@dataclass(frozen=True)
class Broken:
    """A benchmark module that cannot be imported, and why."""

    module: str
    error: str


def find_claims(folder: Path) -> tuple[list[type[Claim]], list[Broken]]:
    """The claims below `folder` by id, and the modules that could not be imported.

    Raises:
        NoBenchmarksError: no bench_*.py lies there.
    """
    files = sorted(folder.rglob("bench_*.py"))
    if not files:
        raise NoBenchmarksError(
            f"no bench_*.py below {folder}: run this where the benchmarks are, or name their folder"
        )
    root = str(folder.resolve().parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    claims: list[type[Claim]] = []
    broken: list[Broken] = []
    for file in files:
        module = ".".join(file.resolve().relative_to(root).with_suffix("").parts)
        try:
            claims += _claims_of(module)
        except Exception as error:  # one broken module must not hide the others
            broken.append(Broken(module, f"{type(error).__name__}: {error}"))
    broken += [
        Broken(claim.__module__, f"its id {claim.id!r} is {other.__module__}'s too")
        for other, claim in twins(claims)
    ]
    return sorted(claims, key=lambda claim: claim.id), broken


def twins(claims: Iterable[type[Claim]]) -> Iterator[tuple[type[Claim], type[Claim]]]:
    """Each claim whose id an earlier one has, after that one: one's results would hide the other's."""
    owners: dict[str, type[Claim]] = {}
    for claim in claims:
        if (other := owners.setdefault(claim.id, claim)) is not claim:
            yield other, claim


def _claims_of(module_name: str) -> Iterator[type[Claim]]:
    module = importlib.import_module(module_name)
    for _, found in inspect.getmembers(module, inspect.isclass):
        is_own = found.__module__ == module.__name__
        if is_own and issubclass(found, Claim) and not inspect.isabstract(found):
            yield found
