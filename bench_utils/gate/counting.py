"""Counting: every case of both sides once, untimed. What is exact is compared exactly."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from bench_utils.gate.refusal import BROKEN, GateRefusal
from bench_utils.gate.runner import Runner, WorkerDied
from bench_utils.gate.sides import Side
from bench_utils.verdict import Outcome

# What the gate itself counts of every case, beside the claim's own costs.
DISPATCHED = ("dispatched_macs", "dispatched_kernels")


def claim_id_of(key: str) -> str:
    """'A2' of 'A2[cached-48]'."""
    return key.split("[", 1)[0]


@dataclass(frozen=True)
class ClaimFacts:
    """What a side says of one of its claims."""

    id: str
    version: str
    is_timed: bool
    costs: tuple[str, ...]
    min_effect: float | None
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Suite:
    """The claims of a side by id, what could not be imported, and where they run."""

    claims: Mapping[str, ClaimFacts]
    broken: Mapping[str, str]
    device: str
    dtype: str

    @property
    def keys(self) -> list[str]:
        """Every case of every claim."""
        return [key for claim in self.claims.values() for key in claim.cases]

    def claim_of(self, key: str) -> ClaimFacts:
        """The claim that a case belongs to."""
        return self.claims[claim_id_of(key)]


@dataclass(frozen=True)
class CaseCount:
    """One case of one side: a validity code with its reason, and its counters."""

    code: str
    reason: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Whether there is something to compare."""
        return self.code == "ok"


class Counter:
    """Counts the cases of one side in a process of its own, and in another one where a case ends that.

    A context manager. The process starts at once, so that two sides import their claims at the same time.
    """

    def __init__(self, side: Side, environ: Mapping[str, str]) -> None:
        self.side = side
        self._environ = environ
        self._runner = Runner(side, environ)

    def suite(self) -> Suite:
        """What the side claims.

        Raises:
            GateRefusal: none of its claims can be imported.
        """
        try:
            told = self._runner.ask("describe")
        except WorkerDied as died:
            raise self._not_importable(str(died)) from died
        claims = {each["id"]: _facts(each) for each in told["claims"]}
        if not claims:
            raise self._not_importable("; ".join(f"{module}: {error}" for module, error in told["broken"].items()))
        return Suite(claims, told["broken"], told["device"], told["dtype"])

    def count(
        self, keys: Sequence[str], begin: Callable[[str], None], end: Callable[[str, CaseCount], None]
    ) -> tuple[dict[str, CaseCount], dict[str, tuple[str, str]]]:
        """Every case once, and then each claim's verdict (outcome, reason) over its cases.

        A case that ends the process costs only itself, and the verdicts of the claims until then.
        """
        counted: dict[str, CaseCount] = {}
        undecidable: set[str] = set()
        for key in keys:
            begin(key)
            try:
                counted[key] = CaseCount(**self._runner.ask("count", key=key))
            except WorkerDied as died:
                counted[key] = CaseCount("error", str(died))
                self._renew()
                undecidable |= set(map(claim_id_of, counted))  # the new process knows nothing of their cases
            end(key, counted[key])
        decidable = dict.fromkeys(each for each in map(claim_id_of, counted) if each not in undecidable)
        return counted, dict(self._verdicts(decidable))

    def _verdicts(self, claim_ids: Iterable[str]) -> Iterator[tuple[str, tuple[str, str]]]:
        for claim_id in claim_ids:
            try:
                told = self._runner.ask("decide", claim_id=claim_id)
            except WorkerDied as died:
                yield claim_id, (Outcome.INVALID.value, str(died))
                return
            yield claim_id, (told["outcome"], told["reason"])

    def _renew(self) -> None:
        self._runner.close()
        self._runner = Runner(self.side, self._environ)

    def _not_importable(self, reason: str) -> GateRefusal:
        name = self.side.name
        return GateRefusal(f"{name}-not-importable", f"no claim of {name} can be imported: {reason}", BROKEN)

    def __enter__(self) -> "Counter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()


def _facts(told: Mapping[str, Any]) -> ClaimFacts:
    facts = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return ClaimFacts(**facts)  # type: ignore[arg-type]  # the worker's words are these fields
