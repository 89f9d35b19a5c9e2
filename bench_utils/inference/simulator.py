"""An event-driven simulation of a batch of seats at given step costs: from one admission or end to the next.

Requests are drawn from an iterator one at a time and latencies are tallied: a million of them need no more memory
than the seats do.
"""

import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench_utils.inference.requests import Request
from bench_utils.inference.scheduling import Policy, Seats, SeatSteps


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a decode step by the number of sequences it computes (from 1 on), and of a prompt's pass.

    With `prefill_s` the prompt's pass stops everyone else and gives the first token; without it prompts cost
    nothing and every token takes a step.
    """

    decode_s: Sequence[float]
    prefill_s: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        if not self.decode_s or not all(0 < cost < math.inf for cost in self.decode_s):
            raise ValueError(f"step costs {list(self.decode_s)}: a positive time for 1, 2, ... sequences is needed")


class Span(NamedTuple):
    """A request on a seat: seated, done, and gone (later than done where its batch holds it), in seconds."""

    seat: int
    request: int
    seated_s: float
    done_s: float
    left_s: float


# Buckets a thousandth wide from a nanosecond to thirty years: as much memory for one time as for a million.
_BUCKET, _SHORTEST_S, _LONGEST_S = 1e-3, 1e-9, 1e9
_NUM_BUCKETS = round(math.log(_LONGEST_S / _SHORTEST_S) / _BUCKET) + 1


@dataclass
class Tally:
    """Times of many requests: their mean exactly, their quantiles to a thousandth, in memory that does not grow."""

    num: int = 0
    total_s: float = 0.0
    buckets: "array[int]" = field(default_factory=lambda: array("q", bytes(8 * _NUM_BUCKETS)), repr=False)

    def add(self, seconds: float) -> None:
        """One more time; those outside the buckets count in the first or last."""
        self.num += 1
        self.total_s += seconds
        inside_s = min(max(seconds, _SHORTEST_S), _LONGEST_S)
        self.buckets[round(math.log(inside_s / _SHORTEST_S) / _BUCKET)] += 1

    @property
    def mean_s(self) -> float:
        """The mean."""
        return self.total_s / self.num

    def quantile_s(self, share: float) -> float:
        """The smallest time that at least this share of them does not pass."""
        counted = np.cumsum(np.frombuffer(self.buckets, dtype=np.int64))
        bucket = int(np.searchsorted(counted, share * self.num))
        return _SHORTEST_S * math.exp(bucket * _BUCKET)


@dataclass
class Simulated(SeatSteps):
    """What serving a set of requests took."""

    policy: Policy
    num_seats: int
    num_tokens: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    latency: Tally = field(default_factory=Tally)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return self.ended_s - self.began_s

    @property
    def tokens_per_s(self) -> float:
        """Throughput: tokens that somebody asked for."""
        return self.num_tokens / self.makespan_s

    @property
    def utilisation(self) -> float:
        """The share of all seat-steps that made such a token."""
        all_of_them = self.num_steps * self.num_seats
        return self.useful_seat_steps / all_of_them if all_of_them else 1.0


def simulate(
    requests: Iterable[Request],
    policy: Policy,
    num_seats: int,
    costs: StepCosts,
    observe: Callable[[Span], None] | None = None,
) -> Simulated:
    """Serve requests, sorted by arrival, first come first seated; `observe` is told each span as it ends.

    Raises:
        ValueError: no seats, costs for fewer sequences than seats, or requests that are impossible or out of order.
    """
    if len(costs.decode_s) < num_seats:
        raise ValueError(f"step costs for up to {len(costs.decode_s)} sequences, {num_seats} seats")
    seats, found = Seats(num_seats, policy), Simulated(policy, num_seats)
    coming = (request.checked() for request in requests)
    upcoming = next(coming, None)
    waiting: deque[Request] = deque()  # of those that have come, as many as can be seated at once
    active: list[tuple[int, int, float, Request]] = []  # a heap by last step: (last step, seat, seated at, request)
    done: list[tuple[int, float, float, Request]] = []  # held by their batch: (seat, seated, done, request)
    now_s, step = upcoming.arrival_s if upcoming is not None else 0.0, 0
    found.began_s = now_s
    while True:
        while upcoming is not None and upcoming.arrival_s <= now_s and len(waiting) < num_seats:
            waiting.append(upcoming)
            upcoming = _after(upcoming, next(coming, None))
        for _ in range(seats.num_admissible(len(waiting))):
            request = waiting.popleft()
            seated_s, num_steps = now_s, request.num_tokens
            if costs.prefill_s is not None:
                now_s += _positive(costs.prefill_s(request.num_prompt), request)
                num_steps -= 1
            heapq.heappush(active, (step + num_steps, seats.take(), seated_s, request))
        if not active:
            if upcoming is None:
                break
            now_s = max(now_s, upcoming.arrival_s)
            continue
        # Until the next end or admission every step computes the same sequences, and costs the same.
        cost_s = costs.decode_s[seats.num_active + seats.num_held - 1]
        num_steps = active[0][0] - step
        if policy.joins and seats.num_free and upcoming is not None:
            num_steps = min(num_steps, max(1, math.ceil((upcoming.arrival_s - now_s) / cost_s)))
        step += num_steps
        now_s += num_steps * cost_s
        found.count(seats, num_steps)
        while active and active[0][0] == step:
            _, seat, seated_s, request = heapq.heappop(active)
            done.append((seat, seated_s, now_s, request))
            if not seats.finish(seat):
                continue
            for seat, seated_s, done_s, request in done:
                found.num_tokens += request.num_tokens
                found.latency.add(now_s - request.arrival_s)
                if observe is not None:
                    observe(Span(seat, request.id, seated_s, done_s, now_s))
            done.clear()
    found.ended_s = now_s
    return found


def _after(request: Request, following: Request | None) -> Request | None:
    if following is not None and following.arrival_s < request.arrival_s:
        raise ValueError(
            f"request {following.id} arrives at {following.arrival_s} s, before request {request.id}: sort them"
        )
    return following


def _positive(prefill_s: float, request: Request) -> float:
    if not 0 <= prefill_s < math.inf:
        raise ValueError(f"a pass over {request.num_prompt} tokens is said to take {prefill_s} s")
    return prefill_s
