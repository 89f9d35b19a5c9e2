"""Two run records of one machine: what is refused, what is exact, and how far times can tell."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from bench_utils.gate import two_records
from bench_utils.gate.options import Options
from bench_utils.gate.refusal import GateRefusal
from bench_utils.gate.rule import State
from bench_utils.history import records
from bench_utils.history.entries import ModelEntry, PlacementEntry, VerdictEntry
from bench_utils.measure.measurement import Measurement
from bench_utils.settings import Settings
from tests.history.support import machine, record

CLAIM = """
from bench_utils.claim import Claim

class ClaimA(Claim):
    id, title, tracked, params, param_names = "A", "a", {"bytes": "B"}, [[0]], ["n"]
    def run(self, n): ...
    def verdict(self, results): ...
"""
OPTIONS = Options(settings=Settings(), budget_s=0)


class A:
    """What a claim says of itself, as far as a gate of records asks."""

    tracked = {"bytes": "B"}
    min_effect = 0.05


def run(seed=0, *, slower=None, drift=1.0, num_cases=20, **changes):
    """A finished record of some cases, each 20 samples; a run's own speed differs by 2 % from case to case."""
    rng = np.random.default_rng(seed)
    made = record(is_finished=True, **changes)
    for number in range(num_cases):
        usual = drift * rng.lognormal(0, 0.02) * (1 + (slower or {}).get(number, 0.0))
        samples = tuple(usual * rng.lognormal(0, 0.01, 20))
        made.add(Measurement("A", {"n": number}, samples, counters={"bytes": 8 * number}, version="1"))
    return made


def hold(base, head, options=OPTIONS):
    return two_records.hold(base, head, {"A": A}, options)


def test_two_runs_of_the_same_code_pass_or_cannot_tell_and_none_is_called_slower():
    """50 pairs of runs of 20 cases: chance of a single alarm below 1e-3, for 2 % of noise against 5 %."""
    for seed in range(50):
        found = hold(run(2 * seed), run(2 * seed + 1))
        assert State.SLOWER not in {each.state for each in found.times.values()}
        assert found.status in (0, 4)


def test_one_case_half_as_fast_is_found():
    found = hold(run(0), run(1, slower={3: 1.0}))
    assert [key for key, each in found.times.items() if each.state is State.SLOWER] == ["A[3]"]
    assert (found.verdict, found.status) == ("regression", 1)


def test_a_machine_that_was_slower_altogether_is_no_regression_of_every_case():
    found = hold(run(0), run(1, drift=1.15))
    assert {each.state for each in found.times.values()} <= {State.UNDECIDED, State.SAME}
    assert found.status == 4


def test_few_cases_do_not_show_the_noise_and_decide_nothing():
    found = hold(run(0, num_cases=3), run(1, num_cases=3))
    assert {each.state for each in found.times.values()} == {State.UNMEASURED}
    assert "3 timed cases" in found.times["A[0]"].reason
    assert found.status == 4


def test_counters_are_compared_exactly():
    head = run(0)
    head.cases["A[2]"] = replace(head.cases["A[2]"], counters={"bytes": 17})
    found = hold(run(0), head)
    assert found.status == 1
    assert any("16 -> 17" in each.told for each in found.findings)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"machine": machine(id="other")}, r"machine: box \(abc\) against box \(other\)"),
        ({"machine": machine(num_threads=1)}, "threads: 2 against 1"),
        ({"model": ModelEntry("another", "r1")}, "model tiny"),
        ({"placement": PlacementEntry("cpu", "bfloat16")}, "float32 against bfloat16"),
        ({"placement": PlacementEntry("cuda:0", "float32")}, "device: cpu against cuda:0"),
        ({"profile": "quick"}, "full profile against quick"),
        ({"origin": "stated"}, "origin: measured against stated"),
    ],
)
def test_unlike_records_are_refused_with_what_differs(changes, told):
    with pytest.raises(GateRefusal, match=told):
        hold(run(0), run(1, **changes))


def test_other_cases_are_refused():
    with pytest.raises(GateRefusal, match=r"only in head: A\[20\], A\[21\], A\[22\] and 2 more"):
        hold(run(0), run(1, num_cases=25))


@pytest.fixture
def no_benchmarks_imported():
    """Those of the project are hidden, and what the test imports of that name is forgotten.

    In the dict that the interpreter holds: another one in its place misleads imports from C.
    """

    def forget():
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "benchmarks"}

    hidden = forget()
    yield
    forget()
    sys.modules.update(hidden)


@pytest.mark.usefixtures("no_benchmarks_imported")
def test_from_files_the_chosen_cases_and_verdicts_alone_are_judged(tmp_path, monkeypatch):
    """Case 24 is in head alone, and the verdict of another claim turned: neither was chosen."""
    base, head = run(0), run(1, num_cases=25)
    for made, outcome in ((base, "holds"), (head, "does not hold here")):
        made.add(Measurement("B", {"n": 1}, (), counters={}, version="1"))
        made.verdicts["B"] = VerdictEntry("b", "exact", "", outcome)
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for made, path in zip((base, head), paths, strict=True):
        records.write(made, path)
    claim = tmp_path / "benchmarks" / "bench_a.py"
    claim.parent.mkdir()
    (claim.parent / "__init__.py").write_text("")
    claim.write_text(CLAIM)
    monkeypatch.setattr(sys, "path", list(sys.path))
    chosen = replace(OPTIONS, claims=str(claim.parent), select=[f"A[{number}]" for number in range(20)])
    found = two_records.gate(*paths, chosen)
    assert found.num_compared == 20
    assert not any(each.key == "B" for each in found.findings)
    with pytest.raises(GateRefusal, match="unknown case 'Z'"):
        two_records.gate(*paths, replace(chosen, select=["Z"]))


def test_an_unfinished_run_is_refused():
    head = run(1)
    head.is_finished = False
    with pytest.raises(GateRefusal, match="finished: True against False"):
        hold(run(0), head)


def test_another_version_of_a_dependency_is_noted():
    found = hold(run(0), run(1, machine=machine(versions={"torch": "2.14"})))
    assert any(each.told == "2.13 -> 2.14" for each in found.findings)
