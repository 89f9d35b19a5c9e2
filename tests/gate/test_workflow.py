"""The workflow file that a project can take: its commands exist, and it needs no rights to speak of."""

import re
from pathlib import Path

import yaml
from typer.testing import CliRunner

from bench_utils.cli import app

WORKFLOW = Path(__file__).parents[2] / ".github/workflows/gate.yml"


def steps():
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]["gate"]["steps"]


def test_every_option_that_it_passes_is_one_of_the_command():
    commands = [line for step in steps() for line in step.get("run", "").splitlines() if "claims gate" in line]
    assert commands
    known = CliRunner().invoke(app, ["gate", "--help"], env={"COLUMNS": "200"}).output
    for option in re.findall(r"--[a-z-]+", " ".join(commands)):
        assert option in known, f"claims gate has no {option}"


def test_the_summary_is_posted_and_a_regression_still_fails_the_step():
    (gate,) = (step["run"] for step in steps() if "claims gate" in step.get("run", ""))
    assert "GITHUB_STEP_SUMMARY" in gate
    assert "set -o pipefail" in gate


def test_it_may_only_read_and_puts_nothing_of_a_pull_request_into_a_shell():
    document = yaml.safe_load(WORKFLOW.read_text())
    assert document["permissions"] == {"contents": "read"}
    assert not any("${{" in step.get("run", "") for step in steps()), "expressions reach a shell by the environment"
    assert document[True] == "pull_request", "with the rights of a fork ('on' is true in YAML 1.1)"


def test_the_whole_history_is_there_and_the_assets_are_kept():
    checkout = next(step for step in steps() if step.get("uses", "").startswith("actions/checkout"))
    assert checkout["with"]["fetch-depth"] == 0
    cached = next(step for step in steps() if step.get("uses", "").startswith("actions/cache"))
    assert cached["with"]["path"] == "~/.cache/inference-claims"
