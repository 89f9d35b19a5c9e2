"""The residual stream is the model's own; counts and scales are those of numbers worked out by hand."""

import pytest
import torch

from bench_utils.inference.outliers import (
    EDGES,
    histogram,
    int8_scale,
    maxima,
    num_levels,
    residual_stream,
    without_largest,
)
from bench_utils.models import prompts


def test_the_stream_is_what_the_model_itself_reports(tiny):
    """Transformers' own hidden states: those before each layer, and after the last one only past the final norm."""
    ids = prompts.prompt_ids(tiny, 9)
    stream = residual_stream(tiny.model, ids)
    with torch.inference_mode():
        theirs = tiny.model(ids, output_hidden_states=True).hidden_states
        last = tiny.model.get_decoder().norm(stream[-1].double())
    assert stream.shape == (3, 9, 32)
    for layer in range(2):
        assert torch.allclose(stream[layer], theirs[layer + 1][0].float())
    assert torch.allclose(last.float(), theirs[-1][0].float(), atol=1e-5)


def test_the_hooks_are_gone_afterwards(tiny):
    layers = tiny.model.get_decoder().layers
    before = [dict(layer._forward_hooks) for layer in layers]
    residual_stream(tiny.model, prompts.prompt_ids(tiny, 3))
    with pytest.raises(IndexError):  # and also where the model fails
        residual_stream(tiny.model, torch.tensor([[10_000]]))
    assert [dict(layer._forward_hooks) for layer in layers] == before


def test_maxima_are_magnitudes_over_the_tokens():
    assert maxima(torch.tensor([[[1.0, -5.0], [-2.0, 3.0]]])).tolist() == [[2.0, 5.0]]


def test_a_value_on_an_edge_belongs_to_the_bin_above():
    counts = histogram(torch.tensor([0.0, 0.99, 1.0, 3.9, 4.0, 4095.0, 4096.0, 23_138.0]))
    assert len(counts) == len(EDGES)
    assert counts == [2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]


def test_one_large_value_leaves_the_others_a_level_or_two():
    values = torch.tensor([[127.0, 0.1], [1.0, 0.3], [-2.0, 0.6]])
    scale = int8_scale(values)
    assert scale == 1.0
    assert num_levels(values, scale) == 4  # 127, 1, -2 and 0, which 0.6 alone leaves for 1
    assert num_levels(values[:, 1], scale) == 2
    rest = without_largest(values, 1)
    assert rest.tolist() == [[pytest.approx(0.1)], [pytest.approx(0.3)], [pytest.approx(0.6)]]
    assert num_levels(rest, int8_scale(rest)) == 3
