"""From a name to a folder of safetensors that lies on this disk, and to the identity that a record keeps of it."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_utils.cache import cache_dir, write_json
from bench_utils.models import assets, catalog, conversion
from bench_utils.models.catalog import Source, SourceKind
from bench_utils.models.errors import ModelLoadError
from bench_utils.models.shapes import chapter_config

RANDOM_SEED = 20_240_917
# What of a hub's repository is ever fetched: weights in safetensors, configuration, tokenizer.
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")


@dataclass(frozen=True)
class ModelIdentity:
    """What a record says of a model. `revision` pins the weights: a checksum, a commit, or the random seed."""

    name: str
    revision: str
    note: str
    is_random: bool = False


@dataclass(frozen=True)
class Located:
    """A model's identity and the folder of its safetensors; None: its weights are random."""

    identity: ModelIdentity
    folder: Path | None


def prepare(model: str, progress: Any = None) -> Located:
    """Fetch, convert and check everything that a run of this model needs, before anything is measured.

    Raises:
        ChoiceError: the name means nothing.
        AssetError, ModelLoadError: it cannot be had, or is not what it should be.
    """
    source = catalog.resolve(model)
    if source.kind is SourceKind.EMBEDDED:
        folder = embedded_folder(progress)
        if not conversion.is_intact(folder):  # by its checksum: once a run, where no case waits for it
            shutil.rmtree(folder)
            embedded_folder(progress)
    located = locate(model)
    if located.folder is not None and has_tokenizer(located.folder):
        assets.ensure(assets.BOOK, progress=progress)
    return located


def locate(model: str) -> Located:
    """Where the model's weights lie, and its identity."""
    source = catalog.resolve(model)
    if source.kind is SourceKind.RANDOM:
        note = "seeded random weights: for bytes, MACs and times, not for quality"
        return Located(ModelIdentity(source.name, f"seed {RANDOM_SEED}", note, is_random=True), None)
    if source.kind is SourceKind.EMBEDDED:
        note = "weights dequantized from a published 4-bit file (Q4_1): that is the reference here"
        identity = ModelIdentity(source.name, assets.SMOLLM2.member_sha256[:12], note)
        return Located(identity, embedded_folder())
    if source.kind is SourceKind.HUB:
        folder = _snapshot(source.name)
        _demand_safetensors(folder, source.name)
        return Located(ModelIdentity(source.name, folder.name, _prompt_note(folder)), folder)
    return _locate_local(source)


def _locate_local(source: Source) -> Located:
    assert source.path is not None
    if source.kind is SourceKind.GGUF:
        revision = _remembered_sha256(source.path)[:12]
        folder = conversion.converted(source.path, revision)
        return Located(ModelIdentity(source.name, revision, "weights dequantized from a GGUF file"), folder)
    _demand_safetensors(source.path, source.name)
    identity = ModelIdentity(source.name, _checksum_of(source.path), _prompt_note(source.path))
    return Located(identity, source.path)


def embedded_folder(progress: Any = None) -> Path:
    """The converted folder of the embedded default model, fetched and converted where it is missing."""
    key = assets.SMOLLM2.member_sha256[:12]
    gguf = assets.path_of(assets.SMOLLM2)
    if not conversion.is_whole(conversion.folder_of(gguf, key)):
        assets.ensure(assets.SMOLLM2, progress=progress)
    return conversion.converted(gguf, key)


def vocab_size(located: Located) -> int:
    """How many tokens a model tells apart, by its config."""
    from transformers import AutoConfig

    if located.folder is None:
        return int(chapter_config().vocab_size)
    return int(AutoConfig.from_pretrained(located.folder, trust_remote_code=False).vocab_size)


def demand_same_vocabulary(target: Located, draft: Located) -> None:
    """Refuse a draft that does not speak the target's tokens.

    Raises:
        ModelLoadError: with both sizes.
    """
    sizes = {located.identity.name: vocab_size(located) for located in (target, draft)}
    if len(set(sizes.values())) > 1:
        told = " and ".join(f"{name} has {size:,} tokens" for name, size in sizes.items())
        raise ModelLoadError(f"{told}: a draft must share the target's vocabulary")


def gguf_of(model: str) -> Path | None:
    """The GGUF file that a model's weights come from, or None where they come from elsewhere."""
    source = catalog.resolve(model)
    if source.kind is SourceKind.EMBEDDED:
        return assets.path_of(assets.SMOLLM2)
    return source.path if source.kind is SourceKind.GGUF else None


def is_embedded_at_hand() -> bool:
    """Whether the embedded model can be used without fetching anything."""
    return assets.path_of(assets.SMOLLM2).is_file()


def has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer's own files lie in the folder: without them an empty one may be made up."""
    return any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
    )


def _prompt_note(folder: Path) -> str:
    return "" if has_tokenizer(folder) else "no tokenizer: prompts are seeded random tokens"


def _snapshot(name: str) -> Path:
    """The hub repository's newest commit, in the hub's own cache; its folder is named by that commit."""
    from huggingface_hub import snapshot_download

    with _hub_errors(name):
        return Path(snapshot_download(name, allow_patterns=list(_WANTED)))


def hub_config(name: str) -> Path:
    """The config.json of a hub repository, alone."""
    from huggingface_hub import hf_hub_download

    with _hub_errors(name):
        return Path(hf_hub_download(name, "config.json"))


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ModelLoadError(
            f"the hub id {name!r} cannot be had: {str(error).strip().splitlines()[0]}\n"
            "  Without a network, give a local folder or a .gguf file instead."
        ) from error


def _demand_safetensors(folder: Path, name: str) -> None:
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{name} holds no config.json: a transformers model folder is wanted")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
        found = f" (found {', '.join(pickled)}: pickled weights are never read)" if pickled else ""
        raise ModelLoadError(
            f"{name} holds no *.safetensors{found}; convert it with save_pretrained(..., "
            "safe_serialization=True) where you trust it"
        )


def _checksum_of(folder: Path) -> str:
    """A short checksum over the config and the whole content of the weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name}\0{_remembered_sha256(path)}".encode())
    return digest.hexdigest()[:12]


def _remembered_sha256(path: Path) -> str:
    """A file's SHA-256, read once for each path, size and time of change."""
    memory = cache_dir() / "checksums" / f"{_key_of(path)}.json"
    try:
        return str(json.loads(memory.read_text())["sha256"])
    except (OSError, ValueError, KeyError):
        checksum = assets.sha256_of(path)
        write_json(memory, {"sha256": checksum})
        return checksum


def _key_of(path: Path) -> str:
    stat = path.stat()
    identity = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
