"""Cached and recomputed decoding: equal where they must be, and caught where a fault is planted."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from bench_utils.inference import agreement, decode
from bench_utils.inference.agreement import Agreement, compare
from bench_utils.models import prompts
from bench_utils.models.cache_layout import PLAIN_FAMILIES
from tests.models.test_facts import SMALL


@pytest.fixture
def prompt(tiny):
    return prompts.prompt_ids(tiny, 9)


def test_both_loops_give_the_same_tokens_and_logits_in_float64(tiny, prompt):
    found = compare(
        tiny.model,
        prompt,
        decode.greedy_recompute(tiny.model, prompt, 12),
        decode.greedy_cached(tiny.model, prompt, 12),
    )
    assert found.num_equal == found.num_tokens == 12
    assert found.max_difference <= found.tolerance < 1e-10


def test_cached_decoding_agrees_with_transformers_own_generate(tiny, prompt):
    """An independent implementation of the same greedy loop."""
    theirs = tiny.model.generate(prompt, max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None)
    assert torch.equal(theirs[:, 9:], decode.greedy_cached(tiny.model, prompt, 12))


def test_a_batch_decodes_row_by_row_as_alone(tiny):
    batch = prompts.prompt_ids(tiny, 7, batch=3)
    together = decode.greedy_cached(tiny.model, batch, 5)
    for row in range(3):
        assert torch.equal(together[row : row + 1], decode.greedy_cached(tiny.model, batch[row : row + 1], 5))


@pytest.mark.parametrize("num_tokens", [1, 2, 7])
def test_tokens_fed_are_counted_as_they_pass_through_the_model(tiny, prompt, num_tokens):
    fed = []
    hook = tiny.model.register_forward_pre_hook(lambda _module, args: fed.append(args[0].shape[1]))
    try:
        decode.greedy_cached(tiny.model, prompt, num_tokens)
        assert sum(fed) == decode.tokens_fed_cached(9, num_tokens)
        fed.clear()
        decode.greedy_recompute(tiny.model, prompt, num_tokens)
        assert sum(fed) == decode.tokens_fed_recompute(9, num_tokens)
    finally:
        hook.remove()


def test_the_last_logits_alone_are_the_last_row_of_all(tiny, prompt):
    with torch.inference_mode():
        whole, last = (decode.full_pass(tiny.model, prompt, last_logits_only=only) for only in (False, True))
    assert last.shape[1] == 1
    assert torch.allclose(whole[:, -1:], last, atol=1e-12, rtol=0)


@pytest.mark.parametrize("family", PLAIN_FAMILIES)
def test_every_family_makes_the_last_positions_logits_alone(family):
    torch.manual_seed(0)
    changes = {"sliding_window": None} if family.startswith("mi") else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SMALL, **changes})).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.inference_mode():
        (whole, _), (last, cache) = (decode.prefill(model, ids, last_logits_only=only) for only in (False, True))
    assert last.shape[1] == 1
    assert cache.get_seq_length() == 5
    assert torch.allclose(whole[:, -1:], last, atol=1e-5, rtol=0)


def shifted_prefill(model, prompt):
    """A planted fault: the cache forgets the prompt's first token, so every later position is off by one."""
    cache = DynamicCache(config=model.config)
    return model(prompt[:, 1:], cache=cache, use_cache=True).logits, cache


def test_a_cache_that_lost_a_token_is_more_than_rounding(tiny, prompt, monkeypatch):
    reference = decode.greedy_recompute(tiny.model, prompt, 8)
    monkeypatch.setattr(agreement, "prefill", shifted_prefill)
    monkeypatch.setattr(decode, "prefill", shifted_prefill)
    found = compare(tiny.model, prompt, reference, decode.greedy_cached(tiny.model, prompt, 8))
    assert found.max_difference > 1e6 * found.tolerance


def test_a_difference_without_a_tie_is_told_from_one_with():
    shared = {"num_tokens": 8, "first_difference": 3, "max_difference": 0.1, "tolerance": 0.2}
    assert Agreement(margin=0.2, **shared).is_near_tie
    assert not Agreement(margin=0.21, **shared).is_near_tie
    assert "3 of 8 tokens identical; token 4 differs at a top-2 margin of 0.21, no tie" in str(
        Agreement(margin=0.21, **shared)
    )


def test_the_margin_is_read_where_the_sequences_part(tiny, prompt):
    reference = decode.greedy_recompute(tiny.model, prompt, 6)
    other = reference.clone()
    other[0, 4] = (other[0, 4] + 1) % tiny.config.vocab_size
    found = compare(tiny.model, prompt, reference, other)
    with torch.inference_mode():
        logits = tiny.model(torch.cat([prompt, reference[:, :4]], dim=1)).logits[0, -1]
    top = logits.topk(2).values
    assert found.first_difference == 4
    assert found.margin == pytest.approx(float(top[0] - top[1]), abs=1e-9)
    assert not found.is_near_tie
