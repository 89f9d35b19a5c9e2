"""Every claim on cases that were run and not timed, as the correctness mode leaves them."""

from pathlib import Path

import pytest

from bench_utils.claim import VERDICT_FAILED, Outcome
from bench_utils.discovery import find_claims
from tests.benchmarks.support import run_all, verdict

CLAIMS, _ = find_claims(Path(__file__).parents[2] / "benchmarks")
# S1 to S4 measure the harness itself, and need the embedded model's assets.
TIMED = [claim for claim in CLAIMS if claim.timed and not claim.id.startswith("S")]


@pytest.mark.parametrize("claim", TIMED, ids=lambda claim: claim.id)
def test_a_verdict_without_times_is_none_of_a_bug(claim, lab):
    found = verdict(claim, lab, run_all(claim, lab))
    assert not found.reason.startswith(VERDICT_FAILED), found.reason
    if claim.kind == "physical":
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "timing was switched off" in found.reason
