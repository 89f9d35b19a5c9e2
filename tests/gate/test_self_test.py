"""The self-test's figures on made-up pools, its record, and what a later gate says of it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bench_utils.gate import record
from bench_utils.gate.figures import Share
from bench_utils.gate.record import GateRecord
from bench_utils.gate.rule import Rule
from bench_utils.gate.self_test import ARMS, SLOWED, figures_of, noise
from bench_utils.gate.told import told_of
from bench_utils.gate.view import share_of
from bench_utils.history.entries import SourceState
from bench_utils.history.schema import RecordError
from tests.history.support import machine


def pool(num_pairs, spread, *, seed=0, keys=("A[1]", "A[2]"), stall=0.0):
    """A self-test whose pairs differ by `spread`; in each process some samples stall."""
    rng = np.random.default_rng(seed)

    def samples(slower, process):
        stalls = rng.random(8) < stall
        every = process * (1 + slower) * rng.lognormal(0, 0.002, 8) * np.where(stalls, 5.0, 1.0)
        return tuple(map(tuple, every.reshape(4, 2).tolist()))

    made = blank()
    made.contrasts = SLOWED
    made.min_effects = dict.fromkeys(keys, 0.05)
    for _ in range(num_pairs):
        pair = {}
        for key in keys:
            speeds = rng.lognormal(0, spread / math.sqrt(2), 2)
            arms = [arm for contrast in ARMS for arm in contrast]
            pair[key] = {arm.name: samples(arm.slower_by, speeds[arm.process]) for arm in arms}
        made.pairs.append(pair)
    return made


def blank(**changes):
    source = SourceState("c0ffee", False)
    fields = {"kind": "self-test", "started_at": "2026-01-02T03:04:05Z", "base": source, "head": source}
    fields |= {"model": "tiny", "profile": "quick", "device": "cpu", "dtype": "float32", "machine": machine()}
    return GateRecord(**{**fields, **changes})


def test_a_steady_machine_raises_no_alarm_and_sees_ten_and_twenty_percent():
    """Pairs 1 % off: 5 and 10 standard errors from the threshold, so that a miss has a chance below 1e-4."""
    gate, asv, compare_fail = figures_of(pool(140, 0.01), Rule())
    assert gate.alarms.num == 0
    assert gate.alarms.out_of >= 18
    assert gate.seen["10%"].num == gate.seen["10%"].out_of >= 16
    assert gate.seen["20%"].num == gate.seen["20%"].out_of
    assert gate.seen["5%"].num <= 2, "at the threshold itself nothing may be called slower"
    assert (asv.alarms.out_of, compare_fail.alarms.out_of) == (70, 140)


def test_a_noisy_machine_is_told_by_what_is_seen_and_by_the_alarms_of_the_others():
    """Processes that differ by 10 %, and one sample in ten that stalls: a mean is off by half of itself.

    30 alarms of 140 lie more than 5 standard deviations below what is expected.
    """
    gate, _, compare_fail = figures_of(pool(140, 0.10, stall=0.1), Rule())
    assert gate.alarms.num == 0
    assert gate.seen["10%"].num < gate.seen["10%"].out_of
    assert compare_fail.alarms.num > 30


def test_plays_of_one_question_share_no_pair_but_for_the_last_one():
    found = pool(20, 0.001)
    gate = figures_of(found, Rule())[0]
    assert gate.alarms.out_of == 3, "twice seven, and six with the first one again"
    assert gate.seen["20%"].num_independent == 2, "fourteen with the confirmation, and six with the first eight"


def test_a_pool_too_small_for_one_gate_says_nothing():
    gate = figures_of(pool(3, 0.01), Rule())[0]
    assert (gate.alarms.out_of, gate.alarms.interval) == (0, None)
    assert share_of(gate.alarms) == "0 of 0"


def test_a_gate_that_wants_more_pairs_than_there_are_cannot_tell():
    gate = figures_of(pool(9, 0.2), Rule())[0]
    assert (gate.undecided_runs.num, gate.undecided_runs.out_of) == (1, 1)


def test_a_pool_without_a_case_has_no_figures_and_an_end():
    empty = pool(9, 0.01)
    empty.min_effects = {}
    assert figures_of(empty, Rule())[0].alarms.out_of == 0


def test_a_share_has_the_interval_of_what_is_independent():
    share = Share(100, 100, 20)
    assert share.interval.low == pytest.approx(0.839, abs=1e-3)
    assert share_of(share) == "100 of 100 [84%, 100%]"


def test_the_noise_of_a_case_is_what_a_pair_of_identical_code_differs_by():
    found = pool(200, 0.10)
    # The median of the absolute value of a normal is 0.6745 of its deviation; of 200, 25 % off is 3 deviations.
    assert noise(found)["A[1]"] == pytest.approx(0.0675, rel=0.25)


def test_a_record_is_read_as_it_was_written_and_without_paths(tmp_path):
    found = pool(2, 0.01)
    path = record.path_for(tmp_path, found)
    found.write(path)
    assert path.relative_to(tmp_path).as_posix() == "box/gate/20260102T030405Z-self-test.json"
    assert record.read(path) == replace(found, findings=[], times={})


def test_a_verdict_quotes_the_newest_whole_self_test_of_such_a_run_on_the_quiet_machine(tmp_path):
    right = pool(28, 0.01)
    others = [pool(14, 0.01, seed=seed) for seed in range(5)]
    for number, each in enumerate((right, *others)):
        each.started_at = f"202{number}-01-02T03:04:05Z"
        each.figures = figures_of(each, Rule())
    others[0].machine = machine(name="other", id="xyz")
    others[1].dtype = "bfloat16"
    others[2].num_neighbours = 2
    others[3].figures = []  # interrupted
    others[4].started_at = "2019-01-02T03:04:05Z"
    for each in (right, *others):
        each.write(record.path_for(tmp_path, each))
    found = blank(kind="gate")
    found.pairs = right.pairs[:1]
    told = told_of(found, None, tmp_path, Rule())
    assert told.test.started_at == right.started_at
    assert told.figures[0].alarms.out_of == 4
    assert told_of(blank(kind="gate"), None, tmp_path, Rule()).test is None, "two records have no pairs"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 9}', '{"schema_version": 1, "kind": "gate"}'])
def test_a_file_that_is_no_record_of_a_gate_is_refused_and_passed_over(tmp_path, text):
    path = tmp_path / "box/gate/20260102T030405Z-self-test.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RecordError):
        record.read(path)
    assert list(record.self_tests(tmp_path, "abc")) == []


def test_every_contrast_is_of_the_two_processes_as_a_gates_is():
    assert [(base.process, head.process) for base, head in ARMS] == [(0, 1)] * 4
    assert [head.slower_by for _, head in ARMS] == [0.0, 0.05, 0.10, 0.20]
