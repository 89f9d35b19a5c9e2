"""The text that quality is measured on: the book, or a file of the user's."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from bench_utils.models import prompts
from bench_utils.models.loading import LoadedModel
from bench_utils.settings import NotApplicableError, Settings


class CorpusError(ValueError):
    """A text that cannot be scored; the message says what is wrong with it."""


@dataclass(frozen=True)
class Corpus:
    """A text, its name, and the first digits of its SHA-256."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        """Of the text that is scored, from its first character."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


def read(settings: Settings) -> Corpus:
    """The user's file, or the book from its first chapter on.

    Raises:
        CorpusError: it is empty or not UTF-8.
        AssetError: the book is neither cached nor reachable.
    """
    if not settings.corpus:
        return Corpus("the book", prompts.book_text())
    path = Path(settings.corpus)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(f"corpus {path.name} is not UTF-8: byte {error.start:,} cannot be read") from error
    if not text.strip():
        raise CorpusError(f"corpus {path.name} is empty")
    return Corpus(path.name, text)


def first_ids(loaded: LoadedModel, corpus: Corpus, num_tokens: int) -> torch.Tensor:
    """The first tokens (1, num_tokens) of a corpus on the model's device, nothing prepended.

    Raises:
        CorpusError: it is shorter than that; says by how much.
        NotApplicableError: the model has no tokenizer.
    """
    if loaded.tokenizer is None:
        raise NotApplicableError("the model has no tokenizer, and a text is scored by its tokens")
    # Most tokens have four or five characters; where they have more, the whole text is taken.
    for text in (corpus.text[: 12 * num_tokens], corpus.text):
        ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"][:num_tokens]
        if len(ids) == num_tokens:
            return torch.tensor([ids]).to(loaded.placement.device)
    raise CorpusError(f"corpus {corpus.name} has {len(ids):,} tokens, and {num_tokens:,} are scored")
