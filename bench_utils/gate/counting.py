"""Counting: every case of both sides once, untimed. What is exact is compared exactly."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_utils.gate.refusal import BROKEN, GateRefusal
from bench_utils.gate.runner import Runner, WorkerDied
from bench_utils.gate.sides import Side

# What the gate itself counts of every case, beside the claim's own costs.
DISPATCHED = ("dispatched_macs", "dispatched_kernels")


def claim_id_of(key: str) -> str:
    """'A2' of 'A2[cached-48]'."""
    return key.split("[", 1)[0]


@dataclass(frozen=True)
class ClaimFacts:
    """What a side says of one of its claims."""

    id: str
    title: str
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

    def claim_of(self, key: str) -> ClaimFacts:
        """The claim that a case belongs to."""
        return self.claims[claim_id_of(key)]


@dataclass(frozen=True)
class Counted:
    """One case of one side: a validity code with its reason, and its counters."""

    code: str
    reason: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Whether there is something to compare."""
        return self.code == "ok"


def suite_of(side: Side, environ: Mapping[str, str]) -> Suite:
    """What a side claims.

    Raises:
        GateRefusal: none of its claims can be imported.
    """
    try:
        with Runner(side, environ) as runner:
            told = runner.ask("describe")
    except WorkerDied as died:
        raise GateRefusal(f"{side.name}-not-importable", f"the claims of {side.name}: {died}", BROKEN) from died
    claims = {each["id"]: _facts(each) for each in told["claims"]}
    if not claims:
        reasons = "; ".join(f"{module}: {error}" for module, error in told["broken"].items())
        message = f"no claim of {side.name} can be imported: {reasons}"
        raise GateRefusal(f"{side.name}-not-importable", message, BROKEN)
    return Suite(claims, told["broken"], told["device"], told["dtype"])


def _facts(told: Mapping[str, Any]) -> ClaimFacts:
    facts = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return ClaimFacts(**facts)  # type: ignore[arg-type]  # the worker's words are these fields


def count(
    side: Side,
    keys: Sequence[str],
    environ: Mapping[str, str],
    begin: Callable[[str], None],
    end: Callable[[str, Counted], None],
) -> tuple[dict[str, Counted], dict[str, tuple[str, str]]]:
    """Every case once, and then each claim's verdict (outcome, reason) over its cases.

    A case that ends the process costs only itself, and its claim's verdict.
    """
    counted: dict[str, Counted] = {}
    verdicts: dict[str, tuple[str, str]] = {}
    left = list(keys)
    while left:
        with Runner(side, environ) as runner:
            key = ""
            try:
                while left:
                    key = left.pop(0)
                    begin(key)
                    counted[key] = Counted(**runner.ask("count", key=key))
                    end(key, counted[key])
                key = ""
                verdicts |= _verdicts(runner, counted)
            except WorkerDied as died:
                if key:
                    counted[key] = Counted("error", str(died))
                    end(key, counted[key])
    return counted, verdicts


def _verdicts(runner: Runner, counted: Iterable[str]) -> dict[str, tuple[str, str]]:
    told = {
        claim_id: runner.ask("decide", claim_id=claim_id) for claim_id in {key.split("[", 1)[0] for key in counted}
    }
    return {claim_id: (each["outcome"], each["reason"]) for claim_id, each in told.items()}
