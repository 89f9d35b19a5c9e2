"""Static and continuous batching as bookkeeping: who may sit down when, and who gets up. No tensors, no time."""

import heapq
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """When a waiting request may take a free seat, and when a finished one's seat is free again.

    `joins`: at the next step, whoever else is seated (continuous batching; Yu et al., Orca, OSDI 2022). Otherwise a
    batch of those who wait is seated together, and leaves together when its longest request is done.
    """

    name: str
    joins: bool


CONTINUOUS = Policy("continuous", joins=True)
STATIC = Policy("static", joins=False)


@dataclass(kw_only=True)
class SeatSteps:
    """The account of a batch: every step counts each seat once, used, padded or idle."""

    num_steps: int = 0
    useful_seat_steps: int = 0
    padded_seat_steps: int = 0
    idle_seat_steps: int = 0

    def count(self, seats: "Seats", num_steps: int = 1) -> None:
        """Enter steps that all find the seats as they are."""
        self.num_steps += num_steps
        self.useful_seat_steps += num_steps * seats.num_active
        self.padded_seat_steps += num_steps * seats.num_held
        self.idle_seat_steps += num_steps * seats.num_free

    @property
    def account(self) -> tuple[int, int, int, int]:
        """Steps, and the used, padded and idle seat-steps of them."""
        return self.num_steps, self.useful_seat_steps, self.padded_seat_steps, self.idle_seat_steps


class Seats:
    """The seats of a batch: free, active, or held by a request that is done and pads its batch."""

    def __init__(self, num_seats: int, policy: Policy) -> None:
        if num_seats < 1:
            raise ValueError(f"{num_seats} seats; at least one is needed")
        self.num_seats = num_seats
        self.policy = policy
        self.num_active = 0
        self._free = list(range(num_seats))  # a heap: the lowest free seat is taken first
        self._held: list[int] = []

    @property
    def num_held(self) -> int:
        """Seats whose request is done, and that a step computes all the same."""
        return len(self._held)

    @property
    def num_free(self) -> int:
        """Seats that nobody sits on."""
        return len(self._free)

    def num_admissible(self, num_waiting: int) -> int:
        """How many waiting requests may sit down before the next step."""
        return min(len(self._free), num_waiting) if self.policy.joins or not self.num_active else 0

    def take(self) -> int:
        """Sit a request down; its seat."""
        self.num_active += 1
        return heapq.heappop(self._free)

    def finish(self, seat: int) -> list[int]:
        """A request is done, or gone: the seats that this frees, its own among them unless its batch holds it."""
        self.num_active -= 1
        self._held.append(seat)
        if self.num_active and not self.policy.joins:
            return []
        freed, self._held = self._held, []
        for each in freed:
            heapq.heappush(self._free, each)
        return freed
