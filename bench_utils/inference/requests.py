"""Requests to serve: the chapter's set, when they arrive, and traces of others."""

import csv
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# 64 output lengths with the chapter's figures: median 18, longest 231, 1,874 tokens in all. The chapter gives no
# more of them. These are the 64 mid-quantiles of a log-normal distribution of median 18 and sigma 1, the longest
# then set to 231 and the second longest to what the sum leaves, in an order shuffled once.
# fmt: off
CHAPTER_LENGTHS = (
    16, 16, 13, 19, 21, 89, 13, 25, 7, 15, 105, 4, 5, 5, 27, 31, 8, 79, 2, 55, 2, 30, 26, 9, 9, 10, 34,
    11, 231, 7, 117, 51, 21, 42, 12, 4, 29, 45, 6, 23, 20, 71, 24, 5, 33, 10, 6, 64, 8, 22, 12, 17, 11,
    48, 40, 14, 18, 18, 9, 3, 14, 59, 36, 38,
)
# fmt: on
# The cache that each request of the chapter's batch curve brings along.
CHAPTER_PROMPT = 64
TRACE_COLUMNS = ("arrival_s", "num_prompt", "num_tokens")


class Request(NamedTuple):
    """One request: when it comes, the tokens of its prompt, and the tokens to generate."""

    id: int
    arrival_s: float
    num_prompt: int
    num_tokens: int

    def checked(self) -> "Request":
        """Itself, if it can be served at all.

        Raises:
            ValueError: an empty prompt, nothing to generate, or a time that is none.
        """
        if self.num_prompt < 1:
            raise ValueError(f"request {self.id} has a prompt of {self.num_prompt} tokens; it needs one at least")
        if self.num_tokens < 1:
            raise ValueError(f"request {self.id} asks for {self.num_tokens} tokens; it must ask for one at least")
        if not 0 <= self.arrival_s < math.inf:
            raise ValueError(f"request {self.id} arrives at {self.arrival_s} s; it must be a time from 0 on")
        return self


def all_at_once(lengths: Iterable[int] = CHAPTER_LENGTHS, num_prompt: int = CHAPTER_PROMPT) -> list[Request]:
    """Every request waits from the start, in the order given."""
    return [Request(i, 0.0, num_prompt, length).checked() for i, length in enumerate(lengths)]


def poisson(lengths: Sequence[int], rate_per_s: float, *, num_requests: int, seed: int) -> Iterator[Request]:
    """Requests at exponential gaps of mean 1 / rate; the lengths are taken round and round."""
    if not 0 < rate_per_s < math.inf:
        raise ValueError(f"a rate of {rate_per_s} requests a second; it must be above 0")
    generator, now_s = random.Random(seed), 0.0  # noqa: S311 - a workload, not a secret
    for i in range(num_requests):
        now_s += generator.expovariate(rate_per_s)
        yield Request(i, now_s, CHAPTER_PROMPT, lengths[i % len(lengths)]).checked()


class TraceError(ValueError):
    """A trace that cannot be served; the message has the file's name and the line's number."""


def read_trace(path: Path) -> Iterator[Request]:
    """The requests of a CSV file with the columns arrival_s, num_prompt and num_tokens, sorted by arrival.

    Read line by line: a long trace needs no memory.

    Raises:
        TraceError: unreadable, or a line that is malformed or out of order.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from _requests(csv.reader(file, strict=True), path.name)
    except OSError as error:
        raise TraceError(f"trace {path.name} cannot be read: {error}") from error


def _requests(rows: Any, name: str) -> Iterator[Request]:
    header = [column.strip() for column in _next_row(rows, name) or []]
    if header != list(TRACE_COLUMNS):
        wanted, found = ",".join(TRACE_COLUMNS), _shortened(header)
        raise TraceError(f"trace {name} line 1: the header must be {wanted}, not {found}")
    last_s, request_id = 0.0, -1
    while (fields := _next_row(rows, name)) is not None:
        if not fields:
            continue
        request_id += 1
        where = f"trace {name} line {rows.line_num}: {_shortened(fields)}"
        try:
            arrival, num_prompt, num_tokens = fields
            request = Request(request_id, float(arrival), int(num_prompt), int(num_tokens)).checked()
        except ValueError as error:
            raise TraceError(f"{where}: {error}") from error
        if request.arrival_s < last_s:
            raise TraceError(f"{where}: it arrives before the line above; sort the trace by arrival_s")
        last_s = request.arrival_s
        yield request
    if request_id < 0:
        raise TraceError(f"trace {name} holds no request")


def _next_row(rows: Any, name: str) -> list[str] | None:
    """The next row, None at the end."""
    before = rows.line_num
    try:
        return next(rows, None)
    except csv.Error as error:
        raise TraceError(f"trace {name} line {rows.line_num}: {error}") from error
    except UnicodeDecodeError as error:  # text is decoded in pieces: the line is this one or a later one
        raise TraceError(f"trace {name} after line {before} is not text in UTF-8: {error.reason}") from error


def _shortened(fields: Iterable[str]) -> str:
    text = ",".join(fields)
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
