"""A neighbour for the self-test: busy for a while, idle for a while, at random, until the gate is gone."""

import os
import random
import sys
import threading
import time

_LONGEST_SPELL_S = 2.0


def _end_with_the_gate() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_gate, daemon=True).start()
    while True:
        until = time.monotonic() + random.uniform(0, _LONGEST_SPELL_S)  # noqa: S311 - no secret
        while time.monotonic() < until:
            pass
        time.sleep(random.uniform(0, _LONGEST_SPELL_S))  # noqa: S311
