"""Losses of a text, token by token, by a stated protocol."""

import math

import pytest
import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

from bench_utils.inference.perplexity import NotFiniteError, Protocol, first_not_finite, token_losses
from tests.conftest import VOCAB, tiny_config


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return LlamaForCausalLM(tiny_config()).double().eval()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(VOCAB, (1, 64), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("protocol", "scored"),
    [
        (Protocol(64, 64, 64), list(range(1, 64))),
        (Protocol(64, 16, 16), [i for i in range(64) if i % 16]),
        (Protocol(64, 32, 16), list(range(1, 64))),
        (Protocol(60, 32, 20), list(range(1, 60))),
        (Protocol(64, 24, 24), [i for i in range(64) if i % 24]),
    ],
)
@torch.inference_mode()
def test_every_token_is_scored_once_with_the_context_of_its_window(model, ids, protocol, scored):
    losses = token_losses(model, ids[:, : protocol.num_tokens], protocol)
    assert len(losses) == protocol.num_scored == len(scored)
    expected, done = [], set()
    for start in range(0, protocol.num_tokens, protocol.stride):
        window = ids[0, start : min(start + protocol.context, protocol.num_tokens)]
        logits = model(window[None]).logits[0]
        for place in range(1, len(window)):
            if start + place in done or start + place not in scored:
                continue
            done.add(start + place)
            expected.append(float(functional.cross_entropy(logits[place - 1], window[place])))
        if start + protocol.context >= protocol.num_tokens:
            break
    assert losses.tolist() == pytest.approx(expected, abs=1e-9)


@torch.inference_mode()
def test_uniform_logits_lose_the_logarithm_of_the_vocabulary(ids):
    flat = LlamaForCausalLM(tiny_config(tie_word_embeddings=False)).eval()
    flat.lm_head.weight.zero_()
    losses = token_losses(flat, ids, Protocol(64, 64, 64))
    assert losses.dtype is torch.float64
    assert losses.tolist() == pytest.approx([math.log(VOCAB)] * 63, abs=1e-6)


@pytest.mark.parametrize(
    "changes", [{"stride": 0}, {"stride": 65}, {"context": 1, "stride": 1}, {"num_tokens": 63}]
)
def test_a_protocol_that_scores_nothing_is_refused(changes):
    with pytest.raises(ValueError, match=r"scores nothing|do not fill"):
        Protocol(**{"num_tokens": 64, "context": 64, "stride": 64, **changes})


def test_the_protocol_says_all_that_decides_the_number():
    assert str(Protocol()) == (
        "2,048 tokens in windows of 512, stride 512, nothing prepended, a window's first token not scored: "
        "2,044 scored"
    )


@torch.inference_mode()
def test_logits_that_are_no_numbers_name_the_layer(ids):
    broken = LlamaForCausalLM(tiny_config()).eval()
    broken.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(NotFiniteError, match="not finite from layer 2 of 3 on"):
        token_losses(broken, ids, Protocol(64, 64, 64))
    window = torch.cat([ids, ids, ids], dim=1)  # the first of three chunks of rows
    with pytest.raises(NotFiniteError, match="layer 2 of 3"):
        token_losses(broken, window, Protocol(192, 192, 192))
    headless = LlamaForCausalLM(tiny_config(tie_word_embeddings=False)).eval()
    headless.lm_head.weight[5] = float("inf")
    assert first_not_finite(headless, ids) == "the head"
