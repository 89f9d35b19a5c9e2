"""The self-tests that lie in results/: whole, reproducible from their samples, and as the README tells them."""

from pathlib import Path

import pytest

from bench_utils.gate import record
from bench_utils.gate.rule import Rule
from bench_utils.gate.self_test import figures_of
from bench_utils.gate.view import self_test_cells

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "results").glob("*/gate/*-self-test.json"))


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
