"""The gates that lie in results/: whole, reproducible from their samples, and as the README tells them."""

from pathlib import Path

import pytest

from bench_utils.gate import record
from bench_utils.gate.pairs import BASE, HEAD
from bench_utils.gate.rule import Rule, State, log_ratio
from bench_utils.gate.self_test import figures_of
from bench_utils.gate.view import self_test_cells
from tests.gate.test_trial import play

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "results").glob("*/gate/*-self-test.json"))
WHOLE = ROOT / "results/amd-epyc-2c-24g-708014/gate/20261130T163100Z-gate.json"


def test_one_is_published_of_a_quiet_machine_and_one_of_a_busy_one_with_forty_gates_on_identical_code():
    found = [record.read(path) for path in PUBLISHED]
    assert {each.num_neighbours for each in found} >= {0, 1}
    assert sum(each.figures[0].alarms.out_of for each in found) >= 40


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_its_figures_are_those_of_its_pairs_and_the_readmes_are_those(path):
    found = record.read(path)
    assert found.figures == figures_of(found, Rule())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for figures in found.figures:
        row = " | ".join(cell.replace("%", " %") for cell in self_test_cells(figures)[1:])
        assert row in readme, f"the README's table lacks: {row}"


def test_a_gate_of_the_whole_quick_suite_on_identical_code_says_of_its_samples_what_it_said_when_it_took_them():
    found = record.read(WHOLE)

    def log_of(number, key):
        arms = found.pairs[number][key]
        return log_ratio(arms[BASE.name], arms[HEAD.name])

    assert set(found.min_effects.values()) == {0.05}
    again, asked = play(log_of, list(found.times))
    assert asked == {key: sum(key in pair for pair in found.pairs) for key in found.times}
    assert {key: (each.state, each.ratio_text, each.num_pairs) for key, each in again.items()} == {
        key: (each.state, each.ratio_text, each.num_pairs) for key, each in found.times.items()
    }
    assert {each.state for each in found.times.values()} == {State.SAME}
    assert found.base.commit == found.head.commit
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"a gate times {len(found.times)} cases" in readme
    assert f"{len(found.pairs)} pairs for the slowest" in readme
