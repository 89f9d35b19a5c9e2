"""The edge of memory: a process of its own that loads the model and decodes within a limit that the system keeps.

The limit holds from when the weights lie in memory of the process's own: loading is not what is judged.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from bench_utils.measure import memory_limit
from bench_utils.measure.memory import is_out_of_memory
from bench_utils.settings import NotApplicableError, Settings, from_environ

_RESOLUTION = 2**16  # bytes; the system gives memory by pages of 4 KiB
_SLACK = 2**32  # more than any step takes besides weights and cache
_TIMEOUT_S = 400  # a case asks two questions
# What a question can end with besides an answer; anything else is an error of the process.
_FORESEEN: Mapping[str, type[Exception]] = {"not applicable": NotApplicableError, "out of memory": MemoryError}


@dataclass(frozen=True)
class Need:
    """The least memory under which one decode step of `num_users` with `num_tokens` each runs.

    Another process may need `spread_bytes` more. `what` names the limit.
    """

    weight_bytes: int
    cache_bytes: int
    limit_bytes: int
    spread_bytes: int
    what: str

    @property
    def overhead_bytes(self) -> int:
        """What is neither weights nor cache."""
        return self.limit_bytes - self.weight_bytes - self.cache_bytes


def need(settings: Settings, *, num_users: int, num_tokens: int) -> Need:
    """Measured in a process of its own, by bisection.

    Raises:
        NotApplicableError: no such limit on this system, or a cache that is not understood.
        MemoryError: the machine has too little for the load itself.
        RuntimeError: the process failed.
    """
    return Need(**_ask(settings, {"question": "need", "num_users": num_users, "num_tokens": num_tokens}))


def longest(settings: Settings, *, num_users: int, limit_bytes: int, num_tokens: int, most: int) -> int:
    """The most tokens, from `num_tokens` to `most`, that each user can have within a limit; 0: not even the first.

    Measured in a process of its own, another than that of `need`.

    Raises:
        NotApplicableError, MemoryError, RuntimeError: as above.
    """
    question = {"question": "longest", "num_users": num_users, "num_tokens": num_tokens}
    return int(_ask(settings, {**question, "limit_bytes": limit_bytes, "most": most})["num_tokens"])


def _ask(settings: Settings, question: dict[str, Any]) -> dict[str, Any]:
    chosen = {f"CLAIMS_{f.name.upper()}": str(getattr(settings, f.name)) for f in fields(settings)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench_utils.edge"],
            input=json.dumps(question),
            env={**os.environ, **chosen, **memory_limit.ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the limited process gave no answer within {_TIMEOUT_S} s") from None
    if done.returncode == -getattr(signal, "SIGKILL", 9):
        raise MemoryError("the limited process was killed, as systems do that run out of memory")
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise RuntimeError(f"the limited process ended with status {done.returncode} and said: {said}") from None
    if "kind" in answer:
        raise _FORESEEN.get(answer["kind"], RuntimeError)(answer["message"])
    return answer


class _Tenant:
    """The model in this process, with weights of its own, and steps over caches of any size."""

    def __init__(self, settings: Settings) -> None:
        import torch

        from bench_utils.models import loading

        self._loaded = loading.load(settings)
        for weight in self._loaded.model.parameters():  # a mapped file is no memory of the process
            weight.data = weight.data.clone()
        self._device = self._loaded.placement.device
        self.weight_bytes = self._loaded.weight_bytes
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def step(self, num_users: int, num_tokens: int) -> int:
        """Decode the last token of each user's; the bytes of the cache."""
        import torch

        from bench_utils.inference.row_cache import RowCache, ragged_step

        with torch.inference_mode():
            cache = RowCache(
                self._loaded.config,
                num_rows=num_users,
                max_tokens=num_tokens,
                dtype=self._loaded.placement.dtype,
                device=self._device,
            )
            last = torch.zeros(num_users, dtype=torch.long, device=self._device)
            ragged_step(self._loaded.model, last, cache.step([num_tokens - 1] * num_users))
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            return cache.keys.nbytes + cache.values.nbytes


def _answer(question: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    from bench_utils import devices

    device = devices.place(settings).device
    limit = memory_limit.limit_for(device.type, device.index or 0)
    tenant = _Tenant(settings)
    num_users, num_tokens = question["num_users"], question["num_tokens"]
    cache_bytes = tenant.step(num_users, num_tokens)  # unlimited: the first step also starts torch's threads

    def runs(limit_bytes: int, tokens: int) -> bool:
        return memory_limit.runs_within(limit, limit_bytes, lambda: tenant.step(num_users, tokens))

    if question["question"] == "longest":
        return {"num_tokens": _longest(question["limit_bytes"], num_tokens, question["most"], runs)}
    inevitable = tenant.weight_bytes + cache_bytes
    if runs(inevitable, num_tokens):
        raise NotApplicableError(f"{limit.what} does not see this process's tensors: another allocator holds them")
    if not runs(inevitable + _SLACK, num_tokens):
        raise MemoryError(f"{num_users} x {num_tokens:,} tokens do not run in {inevitable + _SLACK:,} B")
    enough = memory_limit.least(
        lambda num: runs(num, num_tokens), low=inevitable, high=inevitable + _SLACK, step=_RESOLUTION
    )
    return asdict(Need(tenant.weight_bytes, cache_bytes, enough, limit.spread_bytes, limit.what))


def _longest(limit_bytes: int, low: int, most: int, runs: Any) -> int:
    if not runs(limit_bytes, low):
        return 0
    if runs(limit_bytes, most):
        return most
    refused: int = memory_limit.least(lambda num: not runs(limit_bytes, num), low=low, high=most, step=1)
    return refused - 1


def main() -> None:
    """Answer the question on standard input with a line of JSON on standard output."""
    question = json.loads(sys.stdin.read())
    try:
        answer = _answer(question, from_environ())
    except Exception as error:  # whatever it is, the asker is told of it in its own words
        foreseen = [kind for kind, known in _FORESEEN.items() if isinstance(error, known)]
        kind = "out of memory" if is_out_of_memory(error) else next(iter(foreseen), type(error).__name__)
        answer = {"kind": kind, "message": str(error) or kind}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
