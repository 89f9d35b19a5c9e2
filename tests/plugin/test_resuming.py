"""A run that is killed, and the one that finishes it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench_utils.history import records
from tests.plugin.support import CLAIMS, only_record


def test_a_killed_run_leaves_its_cases_and_is_finished_by_resuming(suite, pytester, tiny_folder, isolated_cache):
    """SIGKILL in the middle: the record is readable, and --claims-resume measures only what is missing."""
    suite("--collect-only")  # writes the benchmark file
    path = Path(pytester.path) / "benchmarks" / "bench_small.py"
    gate = Path(pytester.path) / "gate"
    waiting = f"while (arm, n) == ('fast', 1) and not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"
    path.write_text(
        "import pathlib\n"
        + CLAIMS.replace("        time.sleep(0.004", f"        {waiting}\n        time.sleep(0.004")
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "benchmarks",
        "--benchmark-only",
        "--claims-profile=quick",
        "--claims-device=cpu",
        "--claims-dtype=float32",
        f"--claims-model={tiny_folder}",
    ]
    environment = {**os.environ, "XDG_CACHE_HOME": str(isolated_cache)}
    running = subprocess.Popen(command, cwd=pytester.path, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            files = list(Path(pytester.path).glob("results/*/*.json"))
            if files and len(records.read(files[0]).cases) == 2:
                break
            time.sleep(0.05)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    half = only_record(pytester)
    assert sorted(half.cases) == ["T1[slow-1]", "T1[slow-2]"]
    assert not half.is_finished
    gate.touch()
    done = subprocess.run(
        [*command, "--claims-resume"],
        cwd=pytester.path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming" in done.stdout
    assert "3 passed, 2 skipped" in done.stdout
    whole = only_record(pytester)
    assert whole.is_finished
    assert whole.cases["T1[slow-1]"] == half.cases["T1[slow-1]"]
    assert whole.verdicts["T1"].outcome == "holds"
