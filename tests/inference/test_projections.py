"""Which matrices of a model are its projections."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench_utils.inference.projections import num_projected, projections
from bench_utils.models.shapes import chapter_config
from bench_utils.settings import NotApplicableError
from tests.conftest import tiny_config


def meta_model(config):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def test_the_chapters_model_has_168_of_357_8_million_weights():
    model = meta_model(chapter_config())
    names = [name for name, _ in projections(model)]
    assert len(names) == 168
    assert num_projected(model) == 357_826_560
    assert sum(p.numel() for p in model.parameters()) == 494_032_768
    assert names[0] == "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_head_is_none_of_them(is_tied):
    model = meta_model(tiny_config(tie_word_embeddings=is_tied))
    assert not [name for name, _ in projections(model) if "lm_head" in name]


def test_gpt2s_are_transposed_to_rows_of_outputs():
    config = AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=2, vocab_size=16)
    shapes = {name.split(".")[-1]: tuple(weight.shape) for name, weight in projections(meta_model(config))}
    assert shapes == {"c_attn": (24, 8), "c_proj": (8, 32), "c_fc": (32, 8)}


def test_a_model_without_any_is_named():
    class Bare(torch.nn.Module):
        def get_output_embeddings(self):
            return None

    with pytest.raises(NotApplicableError, match="Bare has no linear projections"):
        list(projections(Bare()))
