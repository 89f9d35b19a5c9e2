"""A gate that is stopped: what was measured stays, and nothing else does."""

import json
import os
import signal
import sys
import time

import pytest

SLOW = ("HEAD", "HEAD", "--select", "T1", "--budget", "5")


def read_until(process, words):
    """Read the progress until a line has these words."""
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"no line with {words!r}: {process.stdout.read()}")


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_keeps_the_pairs_and_removes_the_rest(project, name):
    process = project.start(*SLOW)
    read_until(process, "pair 2")
    # A terminal sends Ctrl-C to the gate and to its workers alike; a build server ends the gate.
    send = os.killpg if name == "SIGINT" else os.kill
    send(process.pid, getattr(signal, name))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    record = json.loads(project.gate_record.read_text())
    assert len(record["pairs"]) >= 1
    assert record["verdict"] == "interrupted"
    assert not project.left_behind


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("words", ["building head", "pair 2"])
def test_a_kill_at_any_stage_does_not_stop_the_next_gate_which_cleans_up(project, words):
    process = project.start(*SLOW)
    read_until(process, words)
    process.kill()
    process.communicate()
    time.sleep(0.2)  # its children end by themselves
    status, output, errors = project.run("HEAD", "HEAD", "--select", "T2", "--budget", "3")
    assert status == 0, output + errors
    assert not project.left_behind
