"""A tiny model with its tokenizer, a lab over it, and a cache of its own for every test."""

from contextlib import ExitStack

import pytest
import torch

import bench_utils.session  # noqa: F401 - in-process runs forget what they import first, and rich takes it amiss
from bench_utils.lab import open_lab
from bench_utils.models import loading
from bench_utils.settings import Settings
from tests.one_layer_gguf import write_one_layer

pytest_plugins = ["pytester"]

VOCAB = 640


@pytest.fixture(autouse=True)
def isolated_cache(tmp_path_factory, monkeypatch):
    """Nothing of the user's cache is read or written, and no CLAIMS_* variable of the caller leaks in."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_names, **_options: folder)
    for name in ("MODEL", "DEVICE", "DTYPE", "PROFILE", "MACHINE", "DRAFT", "TRACE", "CORPUS", "QUESTIONS"):
        monkeypatch.delenv(f"CLAIMS_{name}", raising=False)
    return folder


def tiny_config(**changes):
    from transformers import LlamaConfig

    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "initializer_range": 0.5,  # peaked logits: a wrong cache changes the tokens
    }
    return LlamaConfig(**{**shape, **changes})


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A local folder with a tiny llama in float32 safetensors and no tokenizer."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    LlamaForCausalLM(tiny_config()).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(tiny_folder):
    """The tiny model, loaded in float64."""
    return loading.load(Settings(model=str(tiny_folder), device="cpu", dtype="float64"))


@pytest.fixture
def lab(tiny_folder):
    """A lab over the tiny model: quick, on the CPU, in float32, without limits or passes."""
    settings = Settings(model=str(tiny_folder), device="cpu", dtype="float32", profile="quick")
    with ExitStack() as stack:
        yield open_lab(settings, stack, with_passes=False, limits="none")


@pytest.fixture
def gguf_file(tmp_path):
    """A one-layer llama in a GGUF file."""
    return write_one_layer(tmp_path / "one-layer.gguf")
