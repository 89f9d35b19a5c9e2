"""Speculative decoding: the target's own output whatever the draft, and what a round is worth."""

import pytest
import torch
from transformers import LlamaForCausalLM

from bench_utils.inference.decode import greedy_cached
from bench_utils.inference.sampling import GREEDY, Sampling, probabilities
from bench_utils.inference.speculation import (
    ModelDraft,
    ModelScorer,
    PromptLookup,
    Proposal,
    Speculated,
    expected_speedup,
    expected_tokens,
    speculate,
    verify,
)
from tests.conftest import tiny_config

PROMPT = [5, 9, 11, 400, 5, 9]


def model_of(seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config()).double().eval()


@pytest.fixture(scope="module")
def target():
    return model_of(3)


@pytest.fixture(scope="module")
def near(target):
    """A draft that often agrees: the target with a little noise on its weights."""
    draft = model_of(3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return draft


class Watched(ModelScorer):
    """A scorer that keeps the tokens it should hold."""

    def __init__(self, model):
        super().__init__(model)
        self.held, self.num_passes = [], 0

    def feed(self, tokens):
        self.held += tokens
        self.num_passes += 1
        return super().feed(tokens)

    def forget(self, num_tokens):
        self.held = self.held[: len(self.held) - num_tokens]
        super().forget(num_tokens)
        assert self._cache.get_seq_length() == len(self.held)


def drafts(target, near):
    return {
        "itself": lambda: ModelDraft(ModelScorer(target)),
        "near": lambda: ModelDraft(ModelScorer(near)),
        "another": lambda: ModelDraft(ModelScorer(model_of(8))),
        "lookup": PromptLookup,
    }


@pytest.mark.parametrize("num_drafted", [1, 2, 5, 9])
@pytest.mark.parametrize("name", ["itself", "near", "another", "lookup"])
def test_greedy_output_is_the_targets_own_whatever_the_draft(target, near, name, num_drafted):
    scorer = Watched(target)
    found = speculate(scorer, drafts(target, near)[name](), PROMPT, 20, num_drafted=num_drafted)
    assert found.tokens == greedy_cached(target, torch.tensor([PROMPT]), 20)[0].tolist()
    assert scorer.held == [*PROMPT, *found.tokens][:-1]
    assert sum(num + 1 for _, num in found.rounds) == 20
    assert scorer.num_passes == len(found.rounds) + 1
    assert all(num <= proposed <= num_drafted for proposed, num in found.rounds)


def test_a_draft_that_is_the_target_is_accepted_whole(target):
    found = speculate(ModelScorer(target), ModelDraft(ModelScorer(target)), PROMPT, 20, num_drafted=4)
    assert found.rounds == [(4, 4)] * 4
    assert found.acceptance == 1.0


@pytest.mark.parametrize("num_drafted", [1, 3, 6])
def test_a_draft_that_often_agrees_saves_passes_as_its_acceptance_says(target, near, num_drafted):
    found = speculate(ModelScorer(target), ModelDraft(ModelScorer(near)), PROMPT, 60, num_drafted=num_drafted)
    assert 0.2 < found.acceptance < 1.0
    assert len(found.rounds) < 60 / (1 + found.acceptance / 2)


@pytest.mark.parametrize("num_drafted", [2, 5])
def test_it_generates_what_transformers_generates_with_an_assistant(target, near, num_drafted):
    near.generation_config.num_assistant_tokens = num_drafted
    near.generation_config.num_assistant_tokens_schedule = "constant"
    near.generation_config.assistant_confidence_threshold = 0.0
    ids = torch.tensor([PROMPT])
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    theirs = target.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=near, **options)
    ours = speculate(ModelScorer(target), ModelDraft(ModelScorer(near)), PROMPT, 20, num_drafted=num_drafted)
    assert ours.tokens == theirs[0, len(PROMPT) :].tolist()


def test_a_prompt_of_one_token_is_enough(target, near):
    found = speculate(ModelScorer(target), ModelDraft(ModelScorer(near)), [7], 6, num_drafted=3)
    assert found.tokens == greedy_cached(target, torch.tensor([[7]]), 6)[0].tolist()


# --- drafts


@pytest.mark.parametrize(
    ("sequence", "num", "tokens"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 2, [9, 1]),
        ([1, 2, 3, 9, 1, 2, 3], 9, [9, 1, 2, 3]),
        ([4, 2, 3, 8, 5, 2, 3, 7, 2, 3], 1, [7]),
        ([1, 2, 3], 4, []),
        ([1], 4, []),
        ([6, 6], 3, [6]),
    ],
)
def test_the_prompt_is_looked_up_by_its_longest_ending_the_latest_first(sequence, num, tokens):
    assert PromptLookup().propose(sequence, num) == Proposal(tokens)


def test_a_draft_forgets_what_was_rejected(near):
    scorer = Watched(near)
    draft = ModelDraft(scorer)
    first = draft.propose(PROMPT, 4)
    draft.propose([*PROMPT, first.tokens[0], 17], 3)
    assert scorer.held[: len(PROMPT) + 2] == [*PROMPT, first.tokens[0], 17]
    again = ModelDraft(ModelScorer(near)).propose([*PROMPT, first.tokens[0], 17], 3)
    assert draft.propose([*PROMPT, first.tokens[0], 17], 3) == again


# --- the rule


def test_a_draft_from_the_targets_own_distribution_always_stands():
    generator, sampling = torch.Generator().manual_seed(0), Sampling(1.0)
    logits = torch.randn(4, 7, generator=generator)
    q = torch.stack([probabilities(row, sampling) for row in logits[:3]])
    for _ in range(200):
        tokens = [int(torch.multinomial(row, 1, generator=generator)) for row in q]
        num_accepted, _ = verify(logits, Proposal(tokens, q), sampling, generator)
        assert num_accepted == 3


def test_a_token_that_the_target_never_says_never_stands():
    generator, sampling = torch.Generator().manual_seed(0), Sampling(1.0, top_k=2)
    logits = torch.tensor([[5.0, 4.0, 0.0, 0.0], [0.0, 0.0, 5.0, 4.0]])
    q = torch.tensor([[0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    for _ in range(50):
        num_accepted, following = verify(logits, Proposal([2], q), sampling, generator)
        assert num_accepted == 0
        assert following in (0, 1)


def test_a_proposal_that_was_not_drawn_stands_with_the_targets_probability():
    """A looked-up token is certain: of 2,000 at p = 0.5 between 874 and 1,126 stand (else: 1 chance in 10^7)."""
    generator, sampling = torch.Generator().manual_seed(0), Sampling(1.0)
    logits = torch.zeros(2, 2)
    stood = sum(verify(logits, Proposal([0]), sampling, generator)[0] for _ in range(2_000))
    assert 874 < stood < 1_126


def test_without_a_proposal_a_round_is_a_plain_step():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    assert verify(logits, Proposal([]), GREEDY, torch.Generator()) == (0, 1)


# --- what a round is worth


def test_the_formulas_have_their_known_values():
    assert expected_tokens(0.8, 5) == pytest.approx(3.68928)
    assert expected_speedup(0.8, 5, 0.1) == pytest.approx(2.45952)
    assert expected_speedup(0.5, 1, 0.5) == pytest.approx(1.0)
    assert expected_tokens(1.0, 6) == 7.0
    assert expected_tokens(0.0, 6) == 1.0
    assert expected_speedup(0.8, 5, 0.1, verification=1.5) == pytest.approx(3.68928 / 2.0)


def test_acceptance_counts_up_to_the_first_rejection():
    """Two of four, then four of four, then none of one: six accepted, two rejected."""
    assert Speculated(rounds=[(4, 2), (4, 4), (1, 0)]).acceptance == 6 / 8
    assert Speculated(rounds=[(0, 0)]).acceptance == 0.0
