"""asv's side: it discovers the same claims, with one series for times and one for each tracked counter."""

import json
import subprocess
import sys
from pathlib import Path

import json5
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def discovered(tmp_path_factory):
    """What asv's runner finds below benchmarks/, as it writes it for asv."""
    target = tmp_path_factory.mktemp("asv") / "found.json"
    program = "import sys; from asv_runner.discovery import _discover; _discover((sys.argv[1], sys.argv[2]))"
    subprocess.run([sys.executable, "-c", program, str(ROOT / "benchmarks"), str(target)], check=True, cwd=ROOT)
    return {found["name"]: found for found in json.loads(target.read_text())}


def test_every_claim_has_a_series_for_time_or_for_a_counter(discovered):
    from bench_utils.discovery import find_claims

    claims, broken = find_claims(ROOT / "benchmarks")
    assert not broken
    classes_with_series = {name.split(".")[-2] for name in discovered}
    assert {claim.__name__ for claim in claims} == classes_with_series
    for claim in claims:
        prefix = claim.__module__.removeprefix("benchmarks.") + f".{claim.__name__}."
        series = {name.removeprefix(prefix) for name in discovered if name.startswith(prefix)}
        assert series == {*(["track_time"] if claim.timed else []), *(f"track_{c}" for c in claim.tracked)}


def test_times_are_times_and_counters_have_their_units(discovered):
    time = discovered["kv_cache.bench_speedup.ClaimSpeedup.track_time"]
    assert (time["type"], time["unit"]) == ("time", "seconds")
    assert time["param_names"] == ["arm", "num_tokens"]
    assert time["params"][0] == ["'recompute'", "'cached'"]
    assert discovered["kv_cache.bench_single_head.ClaimSingleHead.track_score_bytes"]["unit"] == "bytes"


def test_a_series_is_versioned_by_the_claims_own_code(discovered):
    from benchmarks.kv_cache import bench_speedup

    name = "kv_cache.bench_speedup.ClaimSpeedup.track_time"
    assert discovered[name]["version"] == bench_speedup.ClaimSpeedup.version


def test_the_configuration_is_where_the_benchmarks_are():
    config = json5.loads((ROOT / "asv.conf.json").read_text())
    assert (config["benchmark_dir"], config["results_dir"]) == ("benchmarks", "results/asv")
    assert set(config["matrix"]["env_nobuild"]) == {"CLAIMS_MODEL", "CLAIMS_DTYPE", "CLAIMS_PROFILE"}
