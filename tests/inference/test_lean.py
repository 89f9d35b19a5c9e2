"""The lean step, held against transformers' own models."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench_utils.inference.decode import full_pass, greedy_recompute
from bench_utils.inference.kernels import INT8_TOKEN
from bench_utils.inference.lean import Dense, LeanDecoder, quantizing
from bench_utils.inference.quantized_linear import quantized_copy
from bench_utils.models.cache_layout import UnknownCacheError
from bench_utils.settings import NotApplicableError
from tests.conftest import VOCAB, tiny_config
from tests.kernels_here import BF16, needs

SHAPE = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.5},
}
CONFIGS = {
    "llama": tiny_config(),
    "llama, a head of its own": tiny_config(tie_word_embeddings=False),
    "llama with biases": tiny_config(attention_bias=True, mlp_bias=True),
    "multi-query": tiny_config(num_key_value_heads=1),
    "multi-head": tiny_config(num_key_value_heads=4),
    "mistral": AutoConfig.for_model("mistral", **SHAPE, sliding_window=None),
    "qwen2 (biases of q, k, v)": AutoConfig.for_model("qwen2", **SHAPE),
    "qwen3 (norms of heads)": AutoConfig.for_model("qwen3", **SHAPE),
    "linear rope": tiny_config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}),
}


def model_of(config, dtype=torch.float64):
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0)
    return model


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_every_step_gives_the_logits_of_a_full_pass(name):
    model = model_of(CONFIGS[name])
    ids = torch.randint(VOCAB, (1, 20), generator=torch.Generator().manual_seed(1))
    decoder = LeanDecoder(model, max_tokens=20)
    found = torch.stack([decoder.step(token, position) for position, token in enumerate(ids[0].split(1))])
    expected = full_pass(model, ids)[0]
    # Transformers norms in float32 whatever the dtype: 84 of its spacings.
    assert float((found - expected).abs().max()) < 1e-5 * float(expected.abs().max())


@torch.inference_mode()
def test_it_chooses_the_tokens_of_decoding_without_a_cache():
    model, prompt = model_of(tiny_config()), torch.arange(10)[None]
    decoder = LeanDecoder(model, max_tokens=26)
    decoder.fill(prompt[0, :-1])
    tokens = decoder.greedy(prompt[0, -1:], 9, 16)
    assert torch.equal(tokens[None], greedy_recompute(model, prompt, 16))
    assert torch.equal(decoder.greedy(prompt[0, -1:], 9, 16), tokens), "a second time it starts where the first did"


@torch.inference_mode()
def test_quantized_projections_are_those_of_the_model_quantized_one_by_one():
    """Rows are quantized each for itself: side by side they stay what they were."""
    needs(INT8_TOKEN, dtype=torch.float32)
    model = model_of(tiny_config(attention_bias=True), torch.float32)
    decoder = LeanDecoder(model, max_tokens=8, make=quantizing(INT8_TOKEN, torch.float32))
    reference = quantized_copy(model, INT8_TOKEN)
    decoder.fill(torch.arange(7))
    found, expected = decoder.step(torch.tensor([7]), 7), reference(torch.arange(8)[None]).logits[0, -1]
    assert float((found - expected).abs().max()) < 1e-3 * float(expected.abs().max())


@pytest.mark.parametrize("is_tied", [True, False])
def test_its_bytes_are_the_models(is_tied):
    model = model_of(tiny_config(tie_word_embeddings=is_tied))
    decoder = LeanDecoder(model, max_tokens=4)
    embedding = model.get_input_embeddings().weight.nbytes
    assert decoder.resident_bytes == sum(p.nbytes for p in model.parameters())
    assert decoder.num_bytes == decoder.resident_bytes - (0 if is_tied else embedding)


def test_a_quantized_head_leaves_the_embedding_beside_it():
    needs(INT8_TOKEN, dtype=torch.float32)
    model = model_of(tiny_config(), torch.float32)
    decoder = LeanDecoder(model, max_tokens=4, make_head=quantizing(INT8_TOKEN, torch.float32))
    assert decoder.resident_bytes - decoder.num_bytes == model.get_input_embeddings().weight.nbytes


def test_a_rotary_embedding_that_moves_is_refused():
    config = tiny_config(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0})
    with pytest.raises(NotApplicableError, match="rope_type='dynamic'"):
        LeanDecoder(model_of(config), max_tokens=4)


def test_another_architecture_is_named():
    config = AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=2, vocab_size=16)
    with pytest.raises(UnknownCacheError, match="model_type='gpt2'"):
        LeanDecoder(model_of(config), max_tokens=4)


def test_a_dense_map_counts_its_weight_and_bias():
    assert Dense(torch.ones(3, 5)).num_bytes == 60
    assert Dense(torch.ones(3, 5), torch.ones(3)).num_bytes == 72


@pytest.mark.parametrize("name", ["qwen2 (biases of q, k, v)", "qwen3 (norms of heads)", "llama with biases"])
def test_its_bytes_are_the_models_with_biases_and_norms_of_heads(name):
    model = model_of(CONFIGS[name])
    decoder = LeanDecoder(model, max_tokens=4)
    assert decoder.resident_bytes == sum(p.nbytes for p in model.parameters())


@torch.inference_mode()
def test_it_quantizes_from_the_finer_weights():
    needs(INT8_TOKEN)
    wide = model_of(tiny_config(), torch.float32)
    model = copy.deepcopy(wide).to(torch.bfloat16)
    kept = []

    def keeping(weight, bias, name):
        kept.append(weight.dtype)
        return quantizing(INT8_TOKEN, torch.bfloat16)(weight, bias, name)

    LeanDecoder(model, max_tokens=4, make=keeping, weights_of=wide)
    assert set(kept) == {torch.float32}
    assert LeanDecoder(model, max_tokens=4, make=keeping, weights_of=wide).step(torch.tensor([3]), 0).dtype is BF16
