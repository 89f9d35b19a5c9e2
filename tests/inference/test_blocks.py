"""The block manager: its published invariants one by one, then any operations against a dense oracle."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bench_utils.inference.blocks import BlockManager


def written(manager, key, tokens, **spare):
    """Admit a sequence and publish it, as if its tensors were written."""
    num_shared = manager.admit(key, tokens, **spare)
    manager.publish(key)
    return num_shared


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_admitting_takes_ceil_n_over_b_blocks(num_tokens, num_blocks):
    manager = BlockManager(10, 4)
    manager.admit(0, range(num_tokens))
    assert manager.num_free == 10 - num_blocks
    assert manager.num_wasted_tokens == num_blocks * 4 - num_tokens < 4


@pytest.mark.parametrize(("num_parent", "num_more"), [(n, m) for n in range(1, 10) for m in range(1, 8)])
def test_a_fork_costs_nothing_and_pays_as_it_parts(num_parent, num_more):
    """ceil((n + m) / b) - floor(n / b) blocks: the whole ones stay shared, a partial one is copied once."""
    manager = BlockManager(20, 4)
    written(manager, 0, range(num_parent))
    before = manager.num_free
    manager.fork(0, 1)
    assert manager.num_free == before
    slots = [manager.append(1, 100 + i) for i in range(num_more)]
    assert before - manager.num_free == -(-(num_parent + num_more) // 4) - num_parent // 4
    assert (slots[0].copied_from is not None) == (num_parent % 4 != 0)
    assert all(slot.copied_from is None for slot in slots[1:])
    manager.release(0)
    manager.release(1)
    assert manager.num_free == 20


def test_whole_blocks_of_a_common_prefix_are_shared_once():
    manager = BlockManager(100, 4)
    prefix = list(range(11))  # two whole blocks and three tokens
    assert [written(manager, key, [*prefix, 50 + key]) for key in range(5)] == [0, 8, 8, 8, 8]
    first, *others = (manager.blocks(key) for key in range(5))
    assert all(blocks[:2] == first[:2] and blocks[2] != first[2] for blocks in others)
    assert [manager.references(block) for block in first] == [5, 5, 1]
    assert 100 - manager.num_free == 2 + 5


def test_a_prompt_is_never_wholly_there():
    manager = BlockManager(10, 4)
    written(manager, 0, range(8))
    assert manager.admit(1, range(8)) == 4, "the last block is computed again: it gives the first token"


def first_comes_alone(manager):
    written(manager, 0, [1, 2, 3, 4, 5])


def first_is_shared(manager):
    written(manager, 0, [1, 2, 9])
    written(manager, 1, [1, 2, 3, 4, 5])


def first_is_forked(manager):
    written(manager, 0, [1, 2])
    manager.fork(0, 1)
    for token in (3, 4, 5):
        manager.append(1, token)


@pytest.mark.parametrize("prepare", [first_comes_alone, first_is_shared, first_is_forked])
def test_a_block_is_told_by_all_that_precedes_it(prepare):
    """The same two tokens at the beginning, or after others, are other keys and values."""
    manager = BlockManager(20, 2)
    prepare(manager)
    assert manager.admit(7, [3, 4, 9]) == 0
    assert written(manager, 8, [9, 9, 3, 4, 5]) == 0
    assert manager.admit(9, [1, 2, 3, 4, 9]) == 4


def test_what_is_not_written_yet_is_not_shared():
    manager = BlockManager(10, 4)
    manager.admit(0, range(9))
    assert manager.admit(1, range(9)) == 0


def test_generated_blocks_are_shared_once_they_are_full_and_the_next_is_begun():
    manager = BlockManager(10, 4)
    written(manager, 0, [0, 1])
    for token in (2, 3):
        manager.append(0, token)
    assert manager.admit(1, range(6)) == 0
    manager.append(0, 4)
    assert manager.admit(2, range(6)) == 4


def test_free_blocks_are_reused_before_they_are_evicted_and_the_oldest_goes_first():
    manager = BlockManager(4, 2)
    written(manager, 0, [1, 2, 3])
    written(manager, 1, [5, 6, 7])
    manager.release(0)
    manager.release(1)
    assert manager.num_free == 4
    assert written(manager, 2, [5, 6, 9]) == 2, "a block that nobody holds is still found"
    manager.release(2)
    manager.admit(3, [8] * 6)  # three of four: the two unused ones, then the oldest reusable one
    assert manager.figures.num_evicted == 1
    manager.release(3)
    assert manager.admit(4, [1, 2, 3]) == 0
    assert manager.admit(5, [5, 6, 7]) == 2


def test_the_end_of_a_prefix_is_evicted_before_its_beginning():
    manager = BlockManager(3, 2)
    written(manager, 0, [1, 2, 3, 4, 5])
    manager.release(0)
    manager.admit(1, [9, 9, 9])
    manager.release(1)
    assert manager.admit(2, [1, 2, 3]) == 2


def test_without_room_nothing_changes():
    manager = BlockManager(3, 4)
    manager.admit(0, range(8))
    assert manager.admit(1, range(100, 105)) is None
    assert manager.admit(1, range(100, 104), spare_tokens=1) is None
    assert manager.admit(1, range(100, 104)) == 0
    assert manager.append(1, 7) is None
    assert (manager.length(1), manager.num_free) == (4, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BlockManager(0, 4), "0 blocks of 4"),
        (lambda: BlockManager(4, 0), "4 blocks of 0"),
        (lambda: BlockManager(4, -1), "4 blocks of -1"),
        (lambda: BlockManager(4, 4).admit(0, []), "sequence 0 is empty"),
        (lambda: written(m := BlockManager(4, 4), 0, [1]) or m.admit(0, [1]), "sequence 0 is held already"),
        (lambda: written(m := BlockManager(4, 4), 0, [1]) or m.fork(0, 0), "sequence 0 is held already"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class AnyOperations(RuleBasedStateMachine):
    """Every sequence is kept densely beside; what its table reads back must be the same after every operation."""

    @initialize(num_blocks=st.integers(1, 12), block_size=st.integers(1, 4))
    def begin(self, num_blocks, block_size):
        self.manager = BlockManager(num_blocks, block_size)
        self.dense = {}
        self.memory = {}  # (block, offset): all tokens up to there, as keys and values depend on them
        self.next_key = 0

    def read(self, key):
        b = self.manager.block_size
        table = self.manager.blocks(key)
        return [self.memory[table[i // b], i % b] for i in range(self.manager.length(key))]

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def admit(self, tokens):
        free, b = self.manager.num_free, self.manager.block_size
        num_shared = self.manager.admit(self.next_key, tokens)
        if num_shared is None:
            assert self.manager.num_free == free
            return
        assert num_shared % b == 0
        assert num_shared < len(tokens)
        table = self.manager.blocks(self.next_key)
        for i in range(num_shared, len(tokens)):
            self.memory[table[i // b], i % b] = tuple(tokens[: i + 1])
        self.manager.publish(self.next_key)
        self.dense[self.next_key] = list(tokens)
        self.next_key += 1

    @precondition(lambda self: self.dense)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data, token):
        key = data.draw(st.sampled_from(sorted(self.dense)))
        slot = self.manager.append(key, token)
        if slot is None:
            assert self.manager.num_free == 0
            return
        if slot.copied_from is not None:
            for offset in range(self.manager.block_size):
                if (slot.copied_from, offset) in self.memory:
                    self.memory[slot.block, offset] = self.memory[slot.copied_from, offset]
        self.dense[key].append(token)
        self.memory[slot.block, slot.offset] = tuple(self.dense[key])

    @precondition(lambda self: self.dense)
    @rule(data=st.data())
    def fork(self, data):
        key = data.draw(st.sampled_from(sorted(self.dense)))
        free = self.manager.num_free
        self.manager.fork(key, self.next_key)
        assert self.manager.num_free == free
        self.dense[self.next_key] = list(self.dense[key])
        self.next_key += 1

    @precondition(lambda self: self.dense)
    @rule(data=st.data())
    def release(self, data):
        key = data.draw(st.sampled_from(sorted(self.dense)))
        self.manager.release(key)
        del self.dense[key]

    @invariant()
    def every_sequence_reads_back(self):
        for key, tokens in getattr(self, "dense", {}).items():
            assert self.read(key) == [tuple(tokens[: i + 1]) for i in range(len(tokens))]

    @invariant()
    def every_block_is_counted_once(self):
        if not hasattr(self, "manager"):
            return
        manager = self.manager
        held = [block for key in self.dense for block in manager.blocks(key)]
        for block in range(manager.num_blocks):
            assert manager.references(block) == held.count(block)
        assert manager.num_free == manager.num_blocks - len(set(held))
        assert manager.num_wasted_tokens < manager.block_size * max(1, len(self.dense))
        for key, tokens in self.dense.items():
            assert len(manager.blocks(key)) == manager.num_needed(len(tokens))

    def teardown(self):
        for key in list(getattr(self, "dense", {})):
            self.manager.release(key)
        if hasattr(self, "manager"):
            assert self.manager.num_free == self.manager.num_blocks


TestAnyOperations = AnyOperations.TestCase
TestAnyOperations.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
