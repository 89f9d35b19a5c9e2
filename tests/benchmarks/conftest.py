"""The chapter's model, small enough for tests."""

import pytest


@pytest.fixture(autouse=True)
def small_chapter(monkeypatch):
    """The chapter's model at a size for tests: fewer layers and a small vocabulary, the same cache a layer."""
    from bench_utils.models import loading, shapes

    def small(num_kv_heads=2):
        config = shapes.chapter_config(num_kv_heads)
        config.num_hidden_layers, config.vocab_size = 24, 160
        config.layer_types = config.layer_types[:24]
        config.hidden_size, config.intermediate_size, config.head_dim = 112, 64, 64
        return config

    monkeypatch.setattr(loading, "chapter_config", small)
