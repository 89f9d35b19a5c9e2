"""The event-driven simulator against a loop that takes every single step; every seat-step accounted for."""

import tracemalloc
from dataclasses import dataclass, field
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_utils.inference.requests import CHAPTER_LENGTHS, Request, all_at_once, poisson
from bench_utils.inference.scheduling import CONTINUOUS, STATIC, Seats
from bench_utils.inference.simulator import StepCosts, Tally, simulate

POLICIES = (CONTINUOUS, STATIC)
UNIT = StepCosts([1.0] * 8)


@dataclass
class Oracle:
    """One step at a time, with plain lists: slow, and too simple to hide a mistake."""

    steps: int = 0
    useful: int = 0
    padded: int = 0
    latencies: dict[int, float] = field(default_factory=dict)


def step_by_step(requests, policy, num_seats, costs):
    found, now, queue, seated = Oracle(), 0.0, list(requests), []
    while queue or seated:
        num_waiting = sum(request.arrival_s <= now for request in queue)
        is_open = policy.joins or not seated
        room = min(num_waiting, num_seats - len(seated)) if is_open else 0
        for _ in range(room):
            request = queue.pop(0)
            left = request.num_tokens
            if costs.prefill_s is not None:
                now += costs.prefill_s(request.num_prompt)
                left -= 1
            seated.append([request, left])
        if policy.joins and any(left == 0 for _, left in seated):  # done by the prompt's pass: up before the step
            for request, left in seated:
                if left == 0:
                    found.latencies[request.id] = now - request.arrival_s
            seated = [each for each in seated if each[1] > 0]
            continue
        if not seated:
            if queue:
                now = max(now, queue[num_waiting].arrival_s)
            continue
        while any(left > 0 for _, left in seated):
            now += costs.decode_s[len(seated) - 1]
            found.steps += 1
            found.useful += sum(left > 0 for _, left in seated)
            found.padded += sum(left <= 0 for _, left in seated)
            for each in seated:
                each[1] -= 1
            if policy.joins:
                break
        gone = [each for each in seated if each[1] <= 0] if policy.joins else seated
        seated = [each for each in seated if each not in gone]
        for request, _ in gone:
            found.latencies[request.id] = now - request.arrival_s
    return found, now


requests_strategy = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=25
).map(lambda raw: [Request(i, float(at), prompt, n) for i, (at, prompt, n) in enumerate(sorted(raw))])


@given(requests_strategy, st.integers(1, 5), st.sampled_from(POLICIES), st.booleans())
def test_the_simulator_equals_a_loop_over_every_step(requests, num_seats, policy, pays_for_prompts):
    """Costs are sums of powers of two, so that both add up to the very same seconds."""
    costs = StepCosts([1.0, 1.5, 1.75, 2.0, 2.5], (lambda n: n / 4) if pays_for_prompts else None)
    expected, end_s = step_by_step(requests, policy, num_seats, costs)
    spans = []
    found = simulate(requests, policy, num_seats, costs, spans.append)
    assert found.ended_s == end_s
    assert found.makespan_s == end_s - requests[0].arrival_s
    assert {span.request: span.left_s - requests[span.request].arrival_s for span in spans} == expected.latencies
    assert found.latency.mean_s == pytest.approx(sum(expected.latencies.values()) / len(requests), rel=1e-12)
    assert (found.num_steps, found.useful_seat_steps, found.padded_seat_steps) == (
        expected.steps,
        expected.useful,
        expected.padded,
    )
    accounted = found.useful_seat_steps + found.padded_seat_steps + found.idle_seat_steps
    assert accounted == found.num_steps * num_seats
    assert found.num_tokens == sum(request.num_tokens for request in requests)


@given(requests_strategy, st.integers(1, 5), st.sampled_from(POLICIES))
def test_nobody_shares_a_seat(requests, num_seats, policy):
    spans = []
    simulate(requests, policy, num_seats, StepCosts([1.0] * 5), spans.append)
    assert all(span.seated_s <= span.done_s <= span.left_s for span in spans)
    for seat in range(num_seats):
        own = sorted(span for span in spans if span.seat == seat)
        own.sort(key=lambda span: span.seated_s)
        assert all(a.left_s <= b.seated_s for a, b in pairwise(own))


def test_the_chapters_requests_in_steps():
    static, continuous = (simulate(all_at_once(), policy, 8, UNIT) for policy in (STATIC, CONTINUOUS))
    batches = [CHAPTER_LENGTHS[i : i + 8] for i in range(0, 64, 8)]
    assert static.num_steps == sum(max(batch) for batch in batches) == 727
    assert static.utilisation == 1_874 / (8 * 727)
    assert static.idle_seat_steps == 0
    assert continuous.padded_seat_steps == 0
    assert continuous.num_steps == 292


def test_a_batch_takes_whom_it_finds_and_those_who_come_later_wait_for_the_next():
    requests = [Request(0, 0.0, 1, 2), Request(1, 1.0, 1, 2), Request(2, 1.5, 1, 2)]
    spans = []
    assert simulate(requests, STATIC, 2, UNIT, spans.append).makespan_s == 4.0
    assert [(span.request, span.seated_s) for span in spans] == [(0, 0.0), (1, 2.0), (2, 2.0)]


def test_memory_does_not_grow_with_the_requests():
    """Forty thousand more: less than a byte each."""

    def peak_bytes(num_requests):
        tracemalloc.start()
        simulate(poisson(CHAPTER_LENGTHS, 0.2, num_requests=num_requests, seed=1), CONTINUOUS, 8, UNIT)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(60_000) - peak_bytes(20_000) < 40_000


def test_requests_are_drawn_as_they_are_needed():
    """A queue of any length stays in its iterator: no more are drawn than seats can take."""
    drawn = 0

    def endless():
        nonlocal drawn
        while True:
            drawn += 1
            yield Request(drawn, 0.0, 1, 5)

    class EnoughError(Exception):
        pass

    def stop(_span):
        raise EnoughError

    with pytest.raises(EnoughError):
        simulate(endless(), CONTINUOUS, 4, UNIT, stop)
    assert drawn <= 4 + 4 + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], CONTINUOUS, 0, UNIT), "0 seats; at least one"),
        (([], CONTINUOUS, 9, UNIT), "step costs for up to 8 sequences, 9 seats"),
        (
            ([Request(0, 2.0, 1, 1), Request(1, 1.0, 1, 1)], CONTINUOUS, 2, UNIT),
            "request 1 arrives at 1.0 s, before",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(*arguments)


@pytest.mark.parametrize("costs", [[], [1.0, 0.0], [1.0, float("nan")]])
def test_a_cost_that_is_none_is_refused(costs):
    with pytest.raises(ValueError, match="a positive time"):
        StepCosts(costs)


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_quantiles_are_right_to_a_thousandth(times, share):
    tally = Tally()
    for seconds in times:
        tally.add(seconds)
    exact = next(s for i, s in enumerate(sorted(times), 1) if i >= share * len(times))
    assert tally.quantile_s(share) == pytest.approx(exact, rel=1e-3)


def test_seats_are_taken_from_the_lowest_and_held_by_their_batch():
    seats = Seats(3, STATIC)
    assert [seats.take() for _ in range(2)] == [0, 1]
    assert seats.num_admissible(5) == 0, "a running batch is closed"
    assert seats.finish(0) == []
    assert (seats.num_active, seats.num_held, seats.num_free) == (1, 1, 1)
    assert sorted(seats.finish(1)) == [0, 1]
    assert seats.num_admissible(5) == 3
    joining = Seats(2, CONTINUOUS)
    assert list(islice(iter(joining.take, None), 2)) == [0, 1]
    assert joining.finish(0) == [0]
    assert joining.num_admissible(5) == 1
