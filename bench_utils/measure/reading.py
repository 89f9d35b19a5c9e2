"""A reading that may be missing: a figure, or None with the reason; never a zero that means 'unknown'."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """`value` is None exactly where `reason` says why."""

    value: float | int | None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) == (not self.reason):
            raise ValueError(f"a reading is a value or a reason: {self.value!r}, {self.reason!r}")


def missing(reason: str) -> Reading:
    """A figure that could not be read, and why."""
    return Reading(None, reason)


def attempt(read: Callable[[], float | int], *errors: type[Exception]) -> Reading:
    """What `read` returns, or the name of the error as the reason."""
    try:
        return Reading(read())
    except errors as error:
        return missing(str(error) or type(error).__name__)
