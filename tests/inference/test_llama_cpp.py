"""llama.cpp itself, where the extra is installed and the default model is at hand."""

import pytest
import torch

from bench_utils.inference import llama_cpp
from bench_utils.settings import NotApplicableError

pytestmark = pytest.mark.skipif(not llama_cpp.is_installed(), reason=llama_cpp.MISSING)


def test_a_file_that_it_cannot_read_is_not_applicable(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, or not")
    with pytest.raises(NotApplicableError, match=r"llama\.cpp cannot load the file"):
        llama_cpp.LlamaCpp(tmp_path / "broken.gguf", max_tokens=8, num_threads=1)


def test_it_decodes_a_tiny_file_and_starts_over_from_the_same_place(gguf_file):
    peer = llama_cpp.LlamaCpp(gguf_file, max_tokens=16, num_threads=torch.get_num_threads())
    peer.fill([1, 2, 3, 4])
    tokens = peer.greedy(5, 6)
    assert len(tokens) == 6
    assert peer.greedy(5, 6) == tokens
    peer.fill([1, 2, 3, 4, 5])
    peer.greedy(tokens[0], 1)
    assert int(peer.last_logits().argmax()) == tokens[1]
