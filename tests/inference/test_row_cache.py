"""Rows of different lengths, stepped together: as alone, in every architecture whose cache is known."""

import gc
import weakref
from functools import partial

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench_utils.inference.captured import CapturedStep
from bench_utils.inference.decode import decode_step, prefill
from bench_utils.inference.row_cache import RowCache, ragged_step
from bench_utils.models import prompts
from bench_utils.models.cache_layout import PLAIN_FAMILIES
from tests.measure.fakes import FakeGraphs
from tests.models.test_facts import SMALL


def rows_for(model, lengths, room=3):
    dtype = next(model.parameters()).dtype
    return RowCache(model.config, num_rows=len(lengths), max_tokens=max(lengths) + room, dtype=dtype, device="cpu")


@torch.inference_mode()
def both_ways(model, lengths, num_steps=3):
    """Logits of each step in rows together, and of each sequence alone in transformers' own cache."""
    vocab = model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    rows = rows_for(model, lengths, room=num_steps)
    caches = []
    for row, length in enumerate(lengths):
        _, cache = prefill(model, torch.randint(vocab, (1, length), generator=generator))
        rows.write(row, cache)
        caches.append(cache)
    together, alone = [], []
    for step in range(num_steps):
        tokens = torch.randint(vocab, (len(lengths),), generator=generator)
        together.append(ragged_step(model, tokens, rows.step([length + step for length in lengths])))
        each = [
            decode_step(model, token.view(1, 1), cache)[0, -1] for token, cache in zip(tokens, caches, strict=True)
        ]
        alone.append(torch.stack(each))
    return torch.stack(together), torch.stack(alone)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", PLAIN_FAMILIES)
def test_a_ragged_batch_decodes_as_each_sequence_alone(family, attention):
    """What is left is rounding (float64; experts know float32 only). A mask off by one, or a stale slot, is not."""
    torch.manual_seed(0)
    dtype, atol = (torch.float32, 1e-5) if family.endswith(("_moe", "mixtral")) else (torch.float64, 1e-11)
    changes = {"sliding_window": None} if family.startswith("mi") else {}
    config = AutoConfig.for_model(family, **{**SMALL, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype).eval()
    together, alone = both_ways(model, [1, 9, 4])
    assert torch.allclose(together, alone, rtol=0, atol=atol)


def test_a_row_that_was_written_over_shows_nothing_of_the_one_before(tiny):
    rows = rows_for(tiny.model, [12, 12])
    with torch.inference_mode():
        for row in range(2):
            rows.write(row, prefill(tiny.model, prompts.prompt_ids(tiny, 12, seed=row + 1))[1])
        _, cache = prefill(tiny.model, prompts.prompt_ids(tiny, 5))
        rows.write(0, cache)
        rows.move(0, 1)
        token = torch.tensor([7, 7])
        logits = ragged_step(tiny.model, token, rows.step([5, 5]))
        alone = decode_step(tiny.model, token[:1, None], cache)[0]
    assert torch.allclose(logits, alone.expand(2, -1), rtol=0, atol=1e-12)


def test_a_step_can_be_repeated_and_writes_where_it_wrote(tiny):
    rows = rows_for(tiny.model, [6])
    with torch.inference_mode():
        rows.write(0, prefill(tiny.model, prompts.prompt_ids(tiny, 6))[1])
        step = rows.step([6])
        first, again = (ragged_step(tiny.model, torch.tensor([3]), step) for _ in range(2))
    assert torch.equal(first, again)


def test_a_full_row_is_refused(tiny):
    with pytest.raises(AssertionError, match="a row of 9 tokens is full"):
        rows_for(tiny.model, [6]).step([9])


def test_a_captured_step_is_warmed_then_captured_once_and_replayed():
    cuda, runs = FakeGraphs(), []
    output = torch.zeros(1)

    def run():
        runs.append(len(cuda.log))
        return output

    replay = CapturedStep(run, cuda)
    assert cuda.log == ["wait", "wait", "capture"]
    assert len(runs) == 3 + 1
    assert replay() is output
    assert replay() is output
    assert len(runs) == 3 + 1, "a replay runs no Python"
    assert cuda.log[-2:] == ["replay", "replay"]


def test_a_captured_step_keeps_what_it_reads_and_writes():
    """A graph knows addresses only: tensors let go would be another's memory at the next replay."""
    cache = torch.zeros(3)
    seen = weakref.ref(cache)
    step = CapturedStep(partial(torch.add, cache, 1.0), FakeGraphs())
    del cache
    gc.collect()
    assert seen() is not None
    del step
    gc.collect()
    assert seen() is None
