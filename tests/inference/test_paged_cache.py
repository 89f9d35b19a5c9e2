"""Decoding through block tables: the contiguous cache's logits, whoever shares and wherever the blocks lie."""

import pytest
import torch

from bench_utils.inference.decode import decode_step, prefill
from bench_utils.inference.paged_cache import PagedStore
from bench_utils.inference.row_cache import ragged_step
from bench_utils.models import prompts


def store_for(tiny, num_blocks=24, block_size=4):
    return PagedStore(tiny.config, num_blocks=num_blocks, block_size=block_size, dtype=torch.float64, device="cpu")


def admit(tiny, store, key, tokens):
    cache = store.admit(key, tokens)
    rest = torch.tensor([tokens[cache.get_seq_length() :]])
    logits, cache = prefill(tiny.model, rest, cache=cache, last_logits_only=True)
    store.fill(key, cache)
    return logits[0, -1]


def contiguous(tiny, tokens):
    with torch.inference_mode():
        _, cache = prefill(tiny.model, torch.tensor([tokens[:-1]]))
        return decode_step(tiny.model, torch.tensor([tokens[-1:]]), cache)[0, -1]


@torch.inference_mode()
def step(tiny, store, newest):
    """One step: each sequence's logits by key."""
    for key, token in newest.items():
        assert store.append(key, token)
    tokens = torch.tensor([newest[key] for key in store.order])
    return dict(zip(store.order, ragged_step(tiny.model, tokens, store.step()), strict=True))


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@torch.inference_mode()
def test_scattered_blocks_decode_as_a_contiguous_cache(tiny, block_size):
    store = store_for(tiny, 64, block_size)
    texts = {key: prompts.prompt_ids(tiny, 5 + 4 * key, seed=key)[0].tolist() for key in range(3)}
    for key, tokens in texts.items():
        admit(tiny, store, key, tokens)
    store.release(1)  # a hole, so that later blocks lie anywhere
    texts[3] = texts.pop(1)[::-1]
    admit(tiny, store, 3, texts[3])
    for token in (7, 8, 9, 10, 11):
        logits = step(tiny, store, dict.fromkeys(texts, token))
        for key, tokens in texts.items():
            tokens.append(token)
            assert torch.allclose(logits[key], contiguous(tiny, tokens), rtol=0, atol=1e-11)


@torch.inference_mode()
def test_a_shared_prefix_is_read_from_the_others_blocks(tiny):
    store = store_for(tiny)
    prefix = list(range(40, 50))
    first = admit(tiny, store, 0, [*prefix, 1])
    second = admit(tiny, store, 1, [*prefix, 2])
    assert store.manager.blocks(0)[:2] == store.manager.blocks(1)[:2]
    assert torch.allclose(first, contiguous(tiny, [*prefix, 1]), rtol=0, atol=1e-11)
    assert torch.allclose(second, contiguous(tiny, [*prefix, 2]), rtol=0, atol=1e-11)


@torch.inference_mode()
def test_forks_that_part_do_not_write_over_each_other(tiny):
    store = store_for(tiny)
    tokens = list(range(40, 46))
    admit(tiny, store, 0, tokens)
    store.fork(0, 1)
    logits = step(tiny, store, {0: 3, 1: 4})
    assert store.manager.figures.num_copied == 1
    for key, token in ((0, 3), (1, 4)):
        assert torch.allclose(logits[key], contiguous(tiny, [*tokens, token]), rtol=0, atol=1e-11)
    again = step(tiny, store, {0: 5, 1: 5})
    assert torch.allclose(again[0], contiguous(tiny, [*tokens, 3, 5]), rtol=0, atol=1e-11)
    assert torch.allclose(again[1], contiguous(tiny, [*tokens, 4, 5]), rtol=0, atol=1e-11)


@torch.inference_mode()
def test_without_the_copy_a_fork_would_be_caught(tiny, monkeypatch):
    """The planted fault: the block is taken, and its old content is not brought along."""
    store = store_for(tiny)
    admit(tiny, store, 0, list(range(40, 46)))
    store.fork(0, 1)
    monkeypatch.setattr(store, "append", lambda key, token: store.manager.append(key, token) is not None)
    logits = step(tiny, store, {0: 3, 1: 4})
    worst = max(float((logits[k] - contiguous(tiny, [*range(40, 46), t])).abs().max()) for k, t in ((0, 3), (1, 4)))
    assert worst > 1e-3


def test_what_a_sequence_holds_reads_back_as_it_was_computed(tiny):
    store = store_for(tiny, block_size=5)
    tokens = prompts.prompt_ids(tiny, 13)
    with torch.inference_mode():
        _, cache = prefill(tiny.model, tokens)
        store.admit(0, tokens[0].tolist())
        store.fill(0, cache)
        back = store.read(0, 13)
    for ours, theirs in zip(back.layers, cache.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


def test_a_cache_larger_than_the_memory_is_refused(tiny, monkeypatch):
    monkeypatch.setattr("bench_utils.devices.free_bytes", lambda device: 1_000)
    with pytest.raises(MemoryError, match="a cache of 24 blocks of 4 tokens needs"):
        store_for(tiny)
