"""One side of a gate: a fresh process that counts and times the cases of its own tree when it is asked.

Run as a file, by the side's own Python: all but this file and the counters of kernels comes from the side, whose
`bench_utils` may be older than the gate. Requests and answers are one JSON object a line; what a claim prints goes
to the errors.
"""

import gc
import importlib.util
import json
import os
import queue
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO


class Worker:
    """Answers requests about the claims below one folder; their names are its methods."""

    def __init__(self, folder: Path) -> None:
        _import_package(folder)
        from bench_utils import settings
        from bench_utils.discovery import find_claims
        from bench_utils.lab import open_lab
        from bench_utils.measure.clock import synchronizer

        self._claims, self._broken = find_claims(folder)
        for claim in self._claims:
            if not Path(sys.modules[claim.__module__].__file__ or "").is_relative_to(folder):
                raise ImportError(f"{claim.__module__} was found outside of the tree, hidden by another package")
        self._lab = open_lab(settings.from_environ(), ExitStack(), with_passes=False, limits="none")
        self._cases = {_key(claim, case): (claim, case) for claim in self._claims for case in claim.cases()}
        self._counted: dict[str, dict[Any, Any]] = {}
        self._open: dict[str, tuple[Any, Any]] = {}
        self._dispatched = _dispatched()
        self._wait_for_device = synchronizer(self._lab.placement.device.type) or (lambda: None)

    def describe(self) -> dict[str, Any]:
        """The claims and their cases, what could not be imported, and where all of it runs."""
        return {
            "claims": [
                {
                    "id": claim.id,
                    "version": claim.version,
                    "is_timed": claim.timed,
                    "costs": list(claim.tracked),
                    "min_effect": getattr(claim, "min_effect", None),
                    "cases": [_key(claim, case) for case in claim.cases()],
                }
                for claim in self._claims
            ],
            "broken": {module.module: module.error for module in self._broken},
            "device": str(self._lab.placement.device),
            "dtype": self._lab.placement.dtype_name,
        }

    def count(self, key: str) -> dict[str, Any]:
        """Run a case once, untimed: its asserts, its counters, and what torch dispatched for it."""
        claim, case = self._new(key)
        plain_run = claim.run
        dispatched: dict[str, int] = {}

        def counted_run(*arguments: Any) -> Any:
            with self._dispatched() as counted:
                output = plain_run(*arguments)
            dispatched["dispatched_kernels"] = counted.num_kernels
            if not counted.unknown:  # of some of its products nobody knows how many they are
                dispatched["dispatched_macs"] = counted.macs
            return output

        claim.run = counted_run
        try:
            measured, _ = self._lab.run_once(claim, case)
        except Exception as error:
            code = "failed" if isinstance(error, AssertionError) else "error"
            return {"code": code, "reason": _first_line(error)}
        self._counted.setdefault(claim.id, {})[case] = measured
        validity = measured.validity
        found = {**measured.counters, **dispatched} if validity.is_ok else {}
        return {"code": validity.code, "reason": validity.reason, "counters": found}

    def decide(self, claim_id: str) -> dict[str, str]:
        """A claim's verdict over the cases that were counted; one that needs times is inconclusive."""
        from bench_utils.claim import decide

        claim = next(claim for claim in self._claims if claim.id == claim_id)()
        claim._lab = self._lab
        verdict = decide(claim, self._counted.get(claim_id, {}))
        return {"outcome": verdict.outcome.value, "reason": verdict.reason}

    def open(self, key: str) -> dict[str, Any]:
        """Set a case up and run it once, untimed: every later run is a warm one."""
        claim, case = self._new(key)
        try:
            claim.setup(*case)
            self._timed(claim, case, 1, 0.0)
        except Exception as error:
            claim.teardown(*case)
            code = "not-applicable" if isinstance(error, NotImplementedError) else "error"
            return {"code": code, "reason": _first_line(error)}
        self._open[key] = claim, case
        return {"code": "ok", "can_repeat": not claim.has_state}

    def burst(self, key: str, num_samples: int, num_runs: int, num_warm: int, extra_s: float) -> dict[str, Any]:
        """Samples in seconds per run, each over `num_runs` runs; `extra_s` of waiting is added to every run."""
        claim, case = self._open[key]
        gc.disable()
        try:
            for _ in range(num_warm):
                self._timed(claim, case, num_runs, 0.0)
            pending = [self._timed(claim, case, num_runs, extra_s) for _ in range(num_samples)]
            # To a tenth of a nanosecond: records keep every sample.
            samples_s = [round(seconds / num_runs, 10) for seconds in self._lab.clock.read(pending)]
        except Exception as error:
            return {"code": "error", "reason": _first_line(error)}
        finally:
            gc.enable()
            self._lab.laps.clear()
        return {"code": "ok", "samples_s": samples_s}

    def close(self, key: str) -> dict[str, Any]:
        """Let go of what open() made."""
        claim, case = self._open.pop(key)
        claim.teardown(*case)
        return {"code": "ok"}

    def _new(self, key: str) -> tuple[Any, Any]:
        claim, case = self._cases[key]
        new = claim()
        new._lab = self._lab
        return new, case

    def _timed(self, claim: Any, case: Any, num_runs: int, extra_s: float) -> Any:
        if claim.has_state:
            claim.restore(*case)
        mark = self._lab.clock.begin()
        for _ in range(num_runs):
            claim.run(*case)
        if extra_s:
            self._wait_for_device()  # waiting beside its work would add nothing
            _spin(extra_s * num_runs)
        return self._lab.clock.end(mark)


def _dispatched() -> Any:
    """The gate's own way of counting, whatever the side's is: both sides are measured with one yardstick."""
    source = Path(__file__).resolve().parents[1] / "measure" / "counters.py"
    spec = importlib.util.spec_from_file_location("counters_of_the_gate", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module.Dispatched


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _key(claim: Any, case: Any) -> str:
    # As the side's own case_key has it, which an older one lacks.
    return f"{claim.id}[{'-'.join(str(value) for value in case)}]"


def _first_line(error: BaseException) -> str:
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return said if isinstance(error, AssertionError | NotImplementedError) else f"{type(error).__name__}: {said}"


def _import_package(folder: Path) -> None:
    """Let the claims be found in the tree, and everything else where it is installed, if it is.

    The tree comes first only until the claims' own package is imported: what was built wins over what lies in
    the tree unbuilt.
    """
    root = str(folder.parent)
    sys.path.insert(0, root)
    __import__(folder.name)
    sys.path.remove(root)
    sys.path.append(root)


def _requests() -> "queue.Queue[str]":
    """Lines as they come. When the gate is gone, however it went, so is this process."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _answer(channel: TextIO, answer: dict[str, Any]) -> None:
    channel.write(json.dumps(answer) + "\n")
    channel.flush()


def main(folder: str) -> None:
    """Serve until the other end closes."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints, prints to the errors
    lines = _requests()
    try:
        worker = Worker(Path(folder).resolve())
    except Exception as error:
        _answer(channel, {"code": "error", "reason": _first_line(error)})
        raise
    _answer(channel, {"code": "ok"})
    while True:
        request = json.loads(lines.get())
        _answer(channel, getattr(worker, request.pop("do"))(**request))


if __name__ == "__main__":
    main(*sys.argv[1:])
