"""Greedy answers to several prompts at once, held against transformers' generate, prompt by prompt."""

import pytest
import torch
from transformers import LlamaForCausalLM

from bench_utils.inference.batch import greedy_answers
from tests.conftest import tiny_config

PROMPTS = [[5, 9, 11], [400, 3], [7, 7, 7, 7, 7, 8], [12]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return LlamaForCausalLM(tiny_config()).double().eval()


def alone(model, prompt, **options):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("penalty", [1.0, 1.3, 2.0])
def test_each_prompt_gets_what_it_gets_alone(model, penalty):
    found = greedy_answers(model, PROMPTS, 12, penalty=penalty)
    expected = [
        alone(model, prompt, repetition_penalty=penalty, eos_token_id=None, pad_token_id=0) for prompt in PROMPTS
    ]
    assert found == expected


def test_a_penalty_changes_the_answer(model):
    assert greedy_answers(model, PROMPTS, 12) != greedy_answers(model, PROMPTS, 12, penalty=2.0)


def test_an_answer_ends_before_its_end_and_the_others_go_on(model):
    free = greedy_answers(model, PROMPTS, 12)
    end = free[0][3]
    found = greedy_answers(model, PROMPTS, 12, ends=frozenset({end}))
    for before, after in zip(free, found, strict=True):
        assert after == (before[: before.index(end)] if end in before else before)


def test_an_answer_may_be_empty(model):
    first = greedy_answers(model, [PROMPTS[0]], 1)[0][0]
    assert greedy_answers(model, [PROMPTS[0]], 5, ends=frozenset({first})) == [[]]
