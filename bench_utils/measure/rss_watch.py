"""A process that watches another one's resident memory: asleep unless asked, so that it disturbs no timing.

It samples every 5 ms, and may miss a shorter peak or be kept from a busy core; where Linux lets it, it also resets
and reads the high-water mark that the kernel keeps of the process, which misses nothing.

Run as `python -m bench_utils.measure.rss_watch PID`; it reads 'begin' and 'end' lines from standard input and
answers 'begin' with the bytes resident now, 'end' with the most that it saw since.
"""

import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

import psutil

_INTERVAL_S = 0.005


def _serve(pid: int) -> None:
    process = psutil.Process(pid)
    watching = threading.Event()
    most = 0

    def watch() -> None:
        nonlocal most
        while True:
            watching.wait()
            most = max(most, process.memory_info().rss)
            threading.Event().wait(_INTERVAL_S)

    threading.Thread(target=watch, daemon=True).start()
    has_mark = False
    for line in sys.stdin:
        now = process.memory_info().rss
        if line.strip() == "begin":
            most = now
            has_mark = _reset_high_water(pid)
            watching.set()
            print(now, flush=True)
        else:
            watching.clear()
            print(max(most, now, _high_water(pid) if has_mark else 0), flush=True)


def _reset_high_water(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # proc(5): 5 resets the peak resident set size
    except OSError:
        return False
    return _high_water(pid) > 0


def _high_water(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    marks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(marks[0]) * 1024 if marks else 0  # the kernel counts in KiB


class RssWatch:
    """The watching process, seen from the watched one."""

    def __init__(self, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> int:
        """Start watching; the bytes resident now."""
        return self._ask("begin")

    def end(self) -> int:
        """Stop watching; the most bytes seen resident since `begin`."""
        return self._ask("end")

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(timeout=10)

    def __enter__(self) -> "RssWatch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
