"""Accepting an intended change in the pull request that makes it: a trailer in one of its commit messages.

Claims-accept: A2[cached-*] dispatched_kernels: one more copy keeps the rows aligned

A trailer speaks of the commits at hand alone: nothing stays behind that would let a later change pass.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench_utils.gate.findings import Finding, Weight
from bench_utils.gate.refusal import GateRefusal

TRAILER = "Claims-accept"
_UNUSED = "was accepted, and nothing differs there"
_FORM = re.compile(r"(?P<cases>\S.*?)\s+(?P<what>[^\s:]+)\s*:\s+(?P<reason>\S.*)")


@dataclass(frozen=True)
class Acceptance:
    """Which cases may differ in what, and why: case names with `*` for anything, and `*` for whatever differs."""

    cases: str
    what: str
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Whether it speaks of this finding."""
        return self.what in ("*", word_of(finding)) and names(self.cases, finding.key)


def word_of(finding: Finding) -> str:
    """What a finding is about, in one word."""
    return finding.what.replace(" ", "_")


def parse(text: str) -> Acceptance:
    """An acceptance from its text.

    Raises:
        GateRefusal: it has another form.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        message = f"{text!r} accepts nothing: write '<case> <what>: <reason>', such as 'A2[cached-*] time: why'"
        raise GateRefusal("bad-acceptance", message)
    return Acceptance(**found.groupdict())


def names(pattern: str, key: str) -> bool:
    """Whether a pattern names a case: '*' stands for anything, and a claim's id for all of its cases."""
    expression = ".*".join(map(re.escape, pattern.split("*")))
    return bool(re.fullmatch(f"{expression}(\\[.*\\])?", key, re.DOTALL))


def accept(found: Sequence[Finding], accepted: Sequence[Acceptance]) -> list[Finding]:
    """The findings with the reasons why they may be so; an acceptance that none needs is a finding too."""
    marked = []
    for finding in found:
        covering = next((each for each in accepted if finding.blocks and each.covers(finding)), None)
        marked.append(replace(finding, accepted=covering.reason) if covering else finding)
    unused = [each for each in accepted if not any(each.covers(finding) for finding in found if finding.blocks)]
    return [*marked, *(Finding(each.cases, each.what, Weight.NOTED, _UNUSED) for each in unused)]
