"""Pairs with made-up processes: the order of turns, the same work on both sides, and what a failing case costs."""

from types import SimpleNamespace

import pytest

from bench_utils.gate import pairs
from bench_utils.gate.pairs import BASE, HEAD, Arm, PairTaker
from bench_utils.gate.runner import WorkerDied


class FakeRunner:
    """A process whose runs take a fixed time, and which may fail in a case or die of it."""

    run_s = {"base": 0.03, "head": 0.03}
    fails = frozenset()
    kills = frozenset()
    can_repeat = True

    def __init__(self, side, environ):
        self.name = side
        self.side = SimpleNamespace(name=side)
        type(self).log.append(("start", side, None))

    def ask(self, request, key, **arguments):
        if request == "open" and (self.name, key) in self.kills:
            raise WorkerDied("it ran out of memory")
        if request == "open" and (self.name, key) in self.fails:
            return {"code": "error", "reason": "no such thing"}
        type(self).log.append((request, self.name, key, arguments))
        seconds = self.run_s[self.name] + arguments.get("extra_s", 0.0)
        samples = [seconds] * arguments.get("num_samples", 0)
        return {"code": "ok", "can_repeat": self.can_repeat, "samples_s": samples}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        type(self).log.append(("end", self.name, None))


@pytest.fixture
def fake(monkeypatch):
    """A fresh kind of process for each test, with a log that all of its kind share."""
    kind = type("Fake", (FakeRunner,), {"log": []})
    monkeypatch.setattr(pairs, "Runner", kind)
    return kind


def measured(kind):
    """The sides of the bursts in order, without those that were tried for a plan."""
    return [entry[1] for entry in kind.log if entry[0] == "burst" and entry[3]["num_warm"]]


def test_turns_are_in_abba_order_and_the_next_pair_begins_with_the_other_side(fake):
    taker = PairTaker(["base", "head"], {})
    (timed,) = taker.take(["A[1]"])
    assert measured(fake) == ["base", "head", "head", "base", "base", "head", "head", "base"]
    assert timed.samples_s["base"] == timed.samples_s["head"] == ((0.03, 0.03),) * 4
    fake.log.clear()
    list(taker.take(["A[1]"]))
    assert measured(fake)[:2] == ["head", "base"]


def test_both_sides_open_a_case_in_the_order_of_their_turns_so_the_first_turn_follows_the_other_sides_work(fake):
    fake.run_s = {"base": 2.0, "head": 2.0}  # a run so long that its only turn is not warmed
    taker = PairTaker(["base", "head"], {})
    list(taker.take(["A[1]"]))
    fake.log.clear()
    list(taker.take(["A[1]"]))
    work = [entry[:2] for entry in fake.log if entry[0] in ("open", "burst")]
    assert work == [("open", "head"), ("open", "base"), ("burst", "head"), ("burst", "base")]


def test_every_pair_has_processes_of_its_own(fake):
    taker = PairTaker(["base", "head"], {})
    list(taker.take(["A[1]", "A[2]"]))
    list(taker.take(["A[1]", "A[2]"]))
    assert sum(entry[0] == "start" for entry in fake.log) == 4
    assert sum(entry[0] == "end" for entry in fake.log) == 4


def test_both_sides_do_the_same_work_in_every_pair_by_the_slower_one(fake):
    fake.run_s = {"base": 1e-6, "head": 4e-3}
    taker = PairTaker(["base", "head"], {})
    list(taker.take(["A[1]"]))
    list(taker.take(["A[1]"]))
    plans = {tuple(sorted(entry[3].items())) for entry in fake.log if entry[0] == "burst"}
    work = {dict(plan)["num_runs"] for plan in plans if dict(plan)["num_warm"]}
    assert work == {3}, "three runs of the slower side fill a sample; ten thousand of the faster one would"


def test_what_has_a_state_is_run_once_a_sample(fake):
    fake.run_s, fake.can_repeat = {"base": 1e-4, "head": 1e-4}, False
    list(PairTaker(["base", "head"], {}).take(["A[1]"]))
    assert {entry[3]["num_runs"] for entry in fake.log if entry[0] == "burst"} == {1}


def test_a_stall_while_the_plan_is_made_is_not_planned_with(fake):
    """The first of three tries takes a second; the case takes 30 ms."""
    stalls = iter([1.0])
    plain = fake.ask

    def ask(self, request, key, **arguments):
        answer = plain(self, request, key, **arguments)
        if request == "burst" and (first := next(stalls, None)):
            answer["samples_s"] = [first, *answer["samples_s"][1:]]
        return answer

    fake.ask = ask
    (timed,) = PairTaker(["base", "head"], {}).take(["A[1]"])
    assert len(timed.samples_s["base"]) == 4


def test_a_long_run_has_one_turn_a_pair_and_the_order_turns_with_the_pair(fake):
    fake.run_s = {"base": 2.0, "head": 2.0}
    taker = PairTaker(["base", "head"], {})
    orders = []
    for _ in range(2):
        fake.log.clear()
        (timed,) = taker.take(["A[1]"])
        orders.append([entry[1] for entry in fake.log if entry[0] == "burst"][-2:])
        assert len(timed.samples_s["head"]) == 1
    assert orders == [["base", "head"], ["head", "base"]]


def test_a_case_that_fails_costs_only_itself_and_the_other_side_lets_go_of_it(fake):
    fake.fails = {("head", "A[1]")}
    found = list(PairTaker(["base", "head"], {}).take(["A[1]", "A[2]"]))
    assert [(each.key, each.reason) for each in found] == [("A[1]", "head: error: no such thing"), ("A[2]", "")]
    assert ("close", "base", "A[1]", {}) in fake.log
    assert sum(entry[0] == "start" for entry in fake.log) == 2


def test_a_case_that_ends_its_process_costs_only_itself(fake):
    fake.kills = {("head", "A[1]")}
    found = list(PairTaker(["base", "head"], {}).take(["A[1]", "A[2]"]))
    assert [(each.key, each.reason) for each in found] == [("A[1]", "it ran out of memory"), ("A[2]", "")]
    assert sum(entry[0] == "start" for entry in fake.log) == 4


def test_an_arm_that_is_made_slower_is_so_by_its_share_of_the_base_at_that_time_in_turns_of_its_own(fake):
    slowed = (Arm("base for 10%", 0), Arm("head 10% slower", 1, 0.10))
    (timed,) = PairTaker(["base", "head"], {}, ((BASE, HEAD), slowed)).take(["A[1]"])
    assert timed.samples_s["head 10% slower"] == ((pytest.approx(0.033),) * 2,) * 4
    assert (
        timed.samples_s["head"] == timed.samples_s["base"] == timed.samples_s["base for 10%"] == ((0.03, 0.03),) * 4
    )
    in_turns = ["base", "head", "head", "base"] * 2
    assert measured(fake) == [*in_turns, "base", *in_turns], "one burst in between tells what is usual"
