"""A folder with small claims, and pytest run over it."""

import pytest

from tests.plugin.support import CLAIMS


@pytest.fixture
def suite(pytester, tiny_folder, isolated_cache, monkeypatch):
    """A folder with small claims; call it with pytest's arguments."""
    monkeypatch.setattr("bench_utils.lab.roofline.measure", lambda *_a: _limits())
    pytester.makeini("[pytest]\npython_files = bench_*.py\npython_classes = Claim*\n")
    folder = pytester.mkdir("benchmarks")

    def run(*arguments, source=CLAIMS, model=tiny_folder, timing="--benchmark-only"):
        (folder / "bench_small.py").write_text(source)
        options = ["--claims-profile=quick", "--claims-device=cpu", "--claims-dtype=float32", timing]
        chosen = [f"--claims-model={model}"] if model else []
        return pytester.runpytest_inprocess("benchmarks", *options, *chosen, *arguments)

    return run


def _limits():
    from bench_utils.measure.roofline import Roofline

    return Roofline({2**20: 1e12}, {2**20: 1e12}, {"float32": 1e13})
