"""The budget: which cases get pairs, what a case that fails costs, and what an interrupt leaves."""

import pytest

from bench_utils.gate import timing
from bench_utils.gate.pairs import TimedCase
from bench_utils.gate.rule import Rule, State
from bench_utils.gate.timing import Timing
from tests.gate.test_self_test import blank


class FakeTaker:
    """Pairs that take as long as they are told to, on a clock of their own."""

    def __init__(self, seconds, *, ratio=1.0, fails=(), start_s=1.0, planning_s=0.0):
        self.now_s, self.planning_s = 0.0, planning_s
        self.seconds, self.ratio, self.fails, self.start_s = seconds, ratio, fails, start_s
        self.asked = []
        self.interrupt_at = None

    def take(self, keys):
        self.asked.append(list(keys))
        if len(self.asked) == self.interrupt_at:
            raise KeyboardInterrupt
        self.now_s += self.start_s
        planning_s = self.planning_s if len(self.asked) == 1 else 0.0
        for key in keys:
            duration_s = self.seconds[key] + planning_s
            self.now_s += duration_s
            if key in self.fails:
                yield TimedCase(key, reason="it broke", duration_s=duration_s)
            else:
                samples = {"base": ((1.0,),), "head": ((self.ratio,),)}
                yield TimedCase(key, samples, "", duration_s, planning_s)


class Silent:
    def begin(self, number, left_s, num_cases): ...
    def case(self, key): ...


@pytest.fixture
def timed(monkeypatch):
    """A timing of these cases within a budget, on the taker's clock."""

    def start(taker, budget_s):
        monkeypatch.setattr(timing, "monotonic", lambda: taker.now_s)
        record = blank(kind="gate")
        record.min_effects = dict.fromkeys(taker.seconds, 0.05)
        return Timing(taker, record, budget_s, Silent(), lambda: None)

    return start


def states(made):
    return {key: each.state for key, each in made.record.times.items()}


def test_with_time_enough_every_case_is_decided(timed):
    taker = FakeTaker({"a": 1.0, "b": 2.0})
    made = timed(taker, 1000)
    made.judge(Rule())
    assert states(made) == {"a": State.SAME, "b": State.SAME}
    assert len(made.record.pairs) == 7


def test_where_not_all_can_reach_the_first_look_the_shortest_do_and_the_others_say_why(timed):
    taker = FakeTaker({"long": 20.0, "short": 1.0, "medium": 3.0})
    made = timed(taker, 60)
    made.judge(Rule())
    assert states(made) == {"long": State.UNMEASURED, "short": State.SAME, "medium": State.SAME}
    assert "--budget" in made.record.times["long"].reason
    assert taker.now_s <= 60


def test_planning_which_the_first_pair_alone_does_takes_no_case_out_of_the_next_ones(timed):
    taker = FakeTaker({"a": 2.0, "b": 1.0}, planning_s=10.0)
    made = timed(taker, 55)  # 24 s for the first pair, 24 s for six more, and not six of those with a plan
    made.judge(Rule())
    assert states(made) == {"a": State.SAME, "b": State.SAME}


def test_a_first_pair_that_is_longer_than_the_budget_is_cut_off(timed):
    taker = FakeTaker({str(number): 10.0 for number in range(50)})
    made = timed(taker, 35)
    made.judge(Rule())
    assert taker.now_s <= 35 + 10
    assert set(states(made).values()) == {State.UNMEASURED}


def test_a_case_that_takes_long_to_fail_does_not_take_the_time_of_the_others(timed):
    taker = FakeTaker({"a": 1.0, "hangs": 900.0}, fails={"hangs"})
    made = timed(taker, 1000)
    made.judge(Rule())
    assert states(made) == {"a": State.SAME, "hangs": State.UNMEASURED}
    assert made.record.times["hangs"].reason == "it broke"
    assert sum("hangs" in asked for asked in taker.asked) == 1


def test_a_slower_case_is_confirmed_within_the_budget(timed):
    made = timed(FakeTaker({"a": 1.0}, ratio=1.5), 1000)
    made.judge(Rule())
    assert states(made) == {"a": State.SLOWER}
    assert len(made.record.pairs) == 14


def test_an_interrupt_keeps_what_the_pairs_at_hand_say(timed):
    taker = FakeTaker({"a": 1.0}, ratio=1.5)
    taker.interrupt_at = 9
    made = timed(taker, 1000)
    with pytest.raises(KeyboardInterrupt):
        made.judge(Rule())
    assert states(made) == {"a": State.UNDECIDED}
    assert len(made.record.pairs) == 8


def test_an_interrupt_in_the_rule_itself_is_still_an_interrupt(timed, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    made = timed(FakeTaker({"a": 1.0}), 1000)
    monkeypatch.setattr("bench_utils.gate.trial.judge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.judge(Rule())
    assert states(made) == {}
