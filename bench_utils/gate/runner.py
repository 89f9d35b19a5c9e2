"""A worker as the gate sees it: a process that answers, or died and left words."""

import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from bench_utils.gate import worker
from bench_utils.gate.sides import Side, own_environ

# What a hanging case may take; the same as asv's limit for a claim.
TIMEOUT_S = 900.0
_LAST_WORDS = 400


class WorkerDied(RuntimeError):  # noqa: N818 - it is the worker's end, not ours
    """A worker ended, or was ended, before it answered; the message holds its last words."""


class Runner:
    """One fresh process of a side. A context manager, so that none outlives the gate."""

    def __init__(self, side: Side, environ: Mapping[str, str]) -> None:
        self.side = side
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [side.python, "-P", worker.__file__, side.folder],
            cwd=side.folder.parent,
            env={**own_environ(), **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )
        self._is_ready = self._took_too_long = False

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """One request and its answer, once the worker has said that it is ready."""
        self.wait_until_ready()
        self._say({"do": request, **arguments})
        return self.receive()

    def wait_until_ready(self) -> None:
        """Wait until its claims are imported.

        Raises:
            WorkerDied: they cannot be.
        """
        if not self._is_ready:
            hello = self.receive()
            if hello["code"] != "ok":
                raise WorkerDied(hello["reason"])
            self._is_ready = True

    def receive(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            WorkerDied: there will be none.
        """
        assert self._process.stdout is not None
        alarm = threading.Timer(TIMEOUT_S, self._end_for_taking_too_long)
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            raise WorkerDied(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerDied(self._last_words()) from error

    def _end_for_taking_too_long(self) -> None:
        self._took_too_long = True
        self._process.kill()

    def _last_words(self) -> str:
        status = self._process.wait()
        name = self.side.name
        if self._took_too_long:
            return f"{name} took more than {TIMEOUT_S:.0f} s"
        self._errors.seek(0)
        words = self._errors.read().decode("utf-8", "replace").strip()[-_LAST_WORDS:]
        return f"{name}'s process ended with status {status}" + (f": {words.splitlines()[-1]}" if words else "")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with suppress(OSError):  # a request that nobody will read
                stream.close()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
