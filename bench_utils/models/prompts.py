"""Prompts: the book where the model has a tokenizer, seeded random tokens where it has none."""

import torch

from bench_utils.models import assets
from bench_utils.models.loading import LoadedModel

_FIRST_CHAPTER = "CHAPTER I"


def book_text() -> str:
    """The book from its first chapter on.

    Raises:
        AssetError: it is neither cached nor reachable.
    """
    text = assets.ensure(assets.BOOK).read_text(encoding="utf-8")
    return text[text.index(_FIRST_CHAPTER) :]


def prompt_ids(loaded: LoadedModel, num_tokens: int, *, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """(batch, num_tokens) token ids on the model's device; rows are different stretches of the book."""
    wanted = batch * num_tokens
    if loaded.tokenizer is None:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(loaded.config.vocab_size, (wanted,), generator=generator)
    else:
        # English runs to four or five characters a token; a tokenizer with longer ones is told below.
        text = book_text()[seed * 1_000 :][: 12 * wanted + 200]
        ids = torch.tensor(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
        if ids.numel() < wanted:
            raise ValueError(
                f"the tokenizer makes {ids.numel()} tokens of {len(text):,} characters, {wanted} wanted"
            )
        ids = ids[:wanted]
    return ids.view(batch, num_tokens).to(loaded.placement.device)
