"""Claims C3 to C5 on the tiny model: green as they are, red with a fault planted in what each one watches."""

import pytest

from bench_utils.claim import Outcome
from bench_utils.inference.blocks import BlockManager
from bench_utils.inference.paged_cache import PagedStore
from bench_utils.inference.requests import CHAPTER_LENGTHS, all_at_once
from bench_utils.inference.scheduling import Seats
from bench_utils.inference.simulator import StepCosts, simulate
from benchmarks.batching import bench_engine, bench_paged_waste
from benchmarks.batching.bench_engine import ClaimEngine
from benchmarks.batching.bench_paged_waste import ClaimPagedWaste
from benchmarks.batching.bench_prefix_sharing import ClaimPrefixSharing
from tests.benchmarks.support import lapped, run, run_all, verdict

ARMS = ("static", "continuous", "continuous on pages")

# --- C3


@pytest.mark.parametrize("arm", ARMS)
def test_c3_serves_every_token_and_counts_its_steps(lab, arm):
    found = run(ClaimEngine, lab, arm)
    num_tokens = sum(-(-n // 4) for n in CHAPTER_LENGTHS[:10])
    assert found.counters["num_tokens"] == num_tokens
    assert found.counters["num_prefilled"] == 10 * 16
    assert found.notes["tokens"] == f"{num_tokens} of {num_tokens} tokens as alone"


def test_c3_sees_a_request_that_got_its_neighbours_token(lab, monkeypatch):
    from bench_utils.inference import engine

    honest = engine.ragged_step
    monkeypatch.setattr(
        engine, "ragged_step", lambda model, tokens, cache: honest(model, tokens, cache).roll(1, dims=0)
    )
    with pytest.raises(AssertionError, match="logits below the choice of decoding it alone"):
        run(ClaimEngine, lab, "continuous")


def test_c3_sees_a_seat_that_stays_empty(lab, monkeypatch):
    honest = Seats.num_admissible
    monkeypatch.setattr(Seats, "num_admissible", lambda seats, waiting: min(1, honest(seats, waiting)))
    monkeypatch.setattr(bench_engine, "simulate", lambda *arguments: whole_batches(honest, *arguments))
    with pytest.raises(AssertionError, match=r"steps and used, padded, idle seat-steps, .* simulated"):
        run(ClaimEngine, lab, "continuous")


def whole_batches(honest, *arguments):
    """A simulation by the true rule, while the engine runs by the false one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seats, "num_admissible", honest)
        return simulate(*arguments)


def served(lab, factor=1.0, latency=(2.0, 1.0)):
    """Every arm as simulated at unit costs, but for a factor; latencies of the static and the joining arms."""
    measured = {}
    lengths = [-(-n // 4) for n in CHAPTER_LENGTHS[:10]]
    for arm in ARMS:
        costs = StepCosts([1.0] * 8, lambda _num_prompt: 0.5)
        real_s = factor * simulate(all_at_once(lengths, 16), bench_engine.POLICIES[arm], 8, costs).makespan_s
        laps = {f"step of {n}": [1.0] * 3 for n in range(1, 9)} | {"prompt": [0.5] * 24, "serve": [real_s] * 3}
        laps["latency"] = [latency[arm != "static"]] * 30
        measured[(arm,)] = lapped(ClaimEngine, (arm,), laps, lab, num_runs=3)
    return measured


def test_c3_reports_how_far_the_simulation_lies_off(lab):
    found = verdict(ClaimEngine, lab, served(lab, factor=1 / 0.95))
    assert found.outcome is Outcome.HOLDS
    assert found.figures["simulated_over_real_continuous"].value == pytest.approx(-0.05)
    assert "-5.0% [-5.0%, -5.0%] continuous on pages" in found.measured


def test_c3_does_not_hold_where_joining_makes_requests_wait_longer(lab):
    assert verdict(ClaimEngine, lab, served(lab, latency=(1.0, 2.0))).outcome is Outcome.DOES_NOT_HOLD


# --- C4


def test_c4_wastes_what_the_formula_says_over_the_chapters_requests(lab):
    found = run_all(ClaimPagedWaste, lab)
    counted = found[(16,)].counters
    held = [64 + i for length in CHAPTER_LENGTHS for i in range(1, length + 1)]
    assert counted["used_slot_steps"] == sum(held)
    assert counted["wasted_slot_steps"] == sum(-(-n // 16) * 16 - n for n in held)
    assert counted["reserved_slot_steps"] == 1_874 * 295
    assert verdict(ClaimPagedWaste, lab, found).outcome is Outcome.HOLDS


def test_c4_sees_a_manager_that_takes_a_block_too_many(lab, monkeypatch):
    monkeypatch.setattr(BlockManager, "num_needed", lambda self, n: n // self.block_size + 1)
    with pytest.raises(AssertionError):
        bench_paged_waste.waste_over_time(16)


def test_c4_sees_pages_in_the_wrong_order(lab, monkeypatch):
    honest = PagedStore.step

    def shuffled(store):
        step = honest(store)
        step._tables = step._tables.flip(1)
        return step

    monkeypatch.setattr(PagedStore, "step", shuffled)
    with pytest.raises(AssertionError, match="pages differ from rows by"):
        run(ClaimPagedWaste, lab, 16)


# --- C5


def test_c5_holds_and_computes_a_common_prefix_once(lab):
    found = run_all(ClaimPrefixSharing, lab)
    assert found[("shared prefix",)].counters["num_blocks"] == 2 + 8 * 2
    assert found[("shared prefix",)].counters["num_prefilled"] == 48 + 7 * 16
    assert found[("fork",)].counters["num_copied"] == 7
    anything = found[("random operations",)].counters
    assert min(anything[name] for name in ("num_shared", "num_copied", "num_evicted")) > 0
    assert verdict(ClaimPrefixSharing, lab, found).outcome is Outcome.HOLDS


def no_sharing(self, tokens):
    return [], b""


def by_tokens_alone(self, chain, tokens, index):
    return bytes(tokens[index * self.block_size : (index + 1) * self.block_size])


def never_copied(self, key, token):
    slot = self.manager.append(key, token)
    return slot is not None


@pytest.mark.parametrize(
    ("owner", "name", "fault", "operation", "message"),
    [
        (
            BlockManager,
            "_published_prefix",
            no_sharing,
            "shared prefix",
            "8 different tables for the same 2 blocks",
        ),
        (BlockManager, "_digest", by_tokens_alone, "random operations", "than the dense copy's"),
        (PagedStore, "append", never_copied, "random operations", "than the dense copy's"),
        (PagedStore, "append", never_copied, "fork", "differs by"),
    ],
)
def test_c5_sees_blocks_that_hold_something_else(lab, monkeypatch, owner, name, fault, operation, message):
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError, match=message):
        run(ClaimPrefixSharing, lab, operation)


def test_c5_sees_a_reference_that_is_never_given_back(lab, monkeypatch):
    honest = BlockManager.release

    def forgetful(self, key):
        self._references[self.blocks(key)[0]] += 1
        honest(self, key)

    monkeypatch.setattr(BlockManager, "release", forgetful)
    with pytest.raises(AssertionError, match="of 64 blocks are free"):
        run(ClaimPrefixSharing, lab, "fork")
