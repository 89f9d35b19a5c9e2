"""The committed history of asv: valid for asv itself, its pages made with every axis, and nothing private in it."""

import json
import subprocess
import sys
from pathlib import Path

import json5
import pytest

ROOT = Path(__file__).parent.parent
HISTORY = ROOT / "results" / "asv"
NUM_COMMITS = 5
AXES = {"machine", "os", "arch", "cpu", "num_cpu", "ram", "gpu", "cuda", "env-CLAIMS_MODEL", "env-CLAIMS_DTYPE"}


def results():
    return [path for path in sorted(HISTORY.glob("*/*.json")) if path.name != "machine.json"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """What `asv publish` makes of it."""
    commits = {path.name.split("-")[0] for path in results()}
    for commit in commits:
        if subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False).returncode:
            pytest.skip(f"commit {commit} is not in this clone")
    home = tmp_path_factory.mktemp("asv")
    config = {
        **json5.loads((ROOT / "asv.conf.json").read_text()),
        "repo": str(ROOT),
        "benchmark_dir": str(ROOT / "benchmarks"),
        "results_dir": str(HISTORY),
        "html_dir": str(home / "html"),
        "env_dir": str(home / "env"),
    }
    (home / "asv.conf.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "asv", "--config", str(home / "asv.conf.json"), "publish"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return home / "html"


def test_at_least_five_commits_are_there_in_every_choice_of_the_axes():
    by_choice = {}
    for path in results():
        commit, _, choice = path.stem.partition("-")
        by_choice.setdefault(choice, set()).add(commit)
    assert len(by_choice) > 1
    assert all(len(commits) >= NUM_COMMITS for commits in by_choice.values())
    assert sum(path.stat().st_size for path in HISTORY.rglob("*.json")) < 2**20


def test_the_pages_have_the_machine_the_gpu_the_model_and_the_dtype_as_axes(pages):
    index = json.loads((pages / "index.json").read_text())
    assert set(index["params"]) >= AXES
    assert len(index["params"]["env-CLAIMS_MODEL"]) > 1
    assert len(index["params"]["env-CLAIMS_DTYPE"]) > 1


def test_a_claims_graph_has_a_point_for_each_commit(pages):
    series = "kv_cache.bench_single_head.ClaimSingleHead.track_time.json"
    graphs = [path for path in pages.rglob(series) if "summary" not in path.parts]
    assert len(graphs) > 1
    for graph in graphs:
        points = json.loads(graph.read_text())
        assert len(points) >= NUM_COMMITS
        assert all(value is not None and value > 0 for _, values in points for value in values)


def test_no_host_user_or_path_is_in_it():
    for path in HISTORY.rglob("*.json"):
        text = path.read_text()
        assert "/home/" not in text, path.name
        assert "/root" not in text, path.name
        assert "/tmp" not in text, path.name
        assert str(Path.home()) not in text, path.name
