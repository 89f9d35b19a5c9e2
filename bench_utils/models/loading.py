"""Loading: a name becomes a model on a device, with its tokenizer where it has one."""

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError

from bench_utils import devices
from bench_utils.models import assets, catalog, conversion
from bench_utils.models.catalog import Source, SourceKind
from bench_utils.models.errors import ModelLoadError
from bench_utils.models.shapes import chapter_config
from bench_utils.settings import Settings

RANDOM_SEED = 20_240_917
_POOL = 1 << 22  # elements of the pool that random weights repeat


@dataclass(frozen=True)
class ModelIdentity:
    """What a record says of a model. `revision` pins the weights: a checksum, a commit, or the random seed."""

    name: str
    revision: str
    note: str


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to run, with its tokenizer where it has one."""

    identity: ModelIdentity
    model: Any
    tokenizer: Any | None
    placement: devices.Placement

    @property
    def config(self) -> Any:
        """The transformers config."""
        return self.model.config

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters, tied ones counted once."""
        return sum(p.nbytes for p in self.model.parameters())


def load(settings: Settings) -> LoadedModel:
    """The model of the settings; the last one is kept, so that claims in a row share it.

    Raises:
        ChoiceError: an unknown name or an absent device.
        ModelLoadError, AssetError: it cannot be used or fetched.
        MemoryError: it does not fit.
    """
    return _load(settings.model, devices.place(settings))


def prepare(settings: Settings, progress: Any = None) -> Source:
    """Everything that needs the network or a conversion, done before anything is measured."""
    source = catalog.resolve(settings.model)
    if source.kind is SourceKind.EMBEDDED:
        assets.ensure(assets.BOOK, progress=progress)
        embedded_folder(progress)
    elif source.kind is SourceKind.GGUF:
        assert source.path is not None
        conversion.converted(source.path)
    elif source.kind is SourceKind.FOLDER:
        assert source.path is not None
        _demand_safetensors(source.path)
    return source


def embedded_folder(progress: Any = None) -> Path:
    """The converted folder of the embedded default model, fetched and converted where it is missing."""
    key = assets.SMOLLM2.member_sha256[:12]
    gguf = assets.path_of(assets.SMOLLM2)
    if not conversion.is_whole(conversion.folder_of(gguf, key)):
        assets.ensure(assets.SMOLLM2, progress=progress)
    return conversion.converted(gguf, source_key=key)


def describe(settings: Settings) -> ModelIdentity:
    """The model's identity without loading its weights; a hub id asks for its config."""
    source = catalog.resolve(settings.model)
    if source.kind is SourceKind.HUB:
        return ModelIdentity(source.name, _hub_commit(source.name), "")
    return _locate(source)[1]


@functools.lru_cache(maxsize=1)
def _load(name: str, placement: devices.Placement) -> LoadedModel:
    folder, identity = _locate(catalog.resolve(name))
    if folder is None:
        return LoadedModel(identity, random_model(chapter_config(), placement), None, placement)
    return LoadedModel(identity, from_safetensors(folder, placement), _tokenizer(folder), placement)


def _locate(source: Source) -> tuple[str | None, ModelIdentity]:
    """The folder or hub id with the weights (None: they are random), and the identity."""
    if source.kind is SourceKind.RANDOM:
        note = "seeded random weights: for bytes, MACs and times, not for quality"
        return None, ModelIdentity(source.name, f"seed {RANDOM_SEED}", note)
    if source.kind is SourceKind.EMBEDDED:
        note = "weights dequantized from a published 4-bit file (Q4_1): that is the reference here"
        revision = assets.SMOLLM2.member_sha256[:12]
        return str(embedded_folder()), ModelIdentity(source.name, revision, note)
    if source.kind is SourceKind.HUB:
        return source.name, ModelIdentity(source.name, _hub_commit(source.name), "")
    assert source.path is not None
    if source.kind is SourceKind.GGUF:
        folder = conversion.converted(source.path)
        revision = conversion.weights_sha256(folder)[:12]
        return str(folder), ModelIdentity(source.name, revision, "weights dequantized from a GGUF file")
    _demand_safetensors(source.path)
    return str(source.path), ModelIdentity(source.name, _fingerprint_of(source.path), "")


def _hub_commit(name: str) -> str:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"the hub id {name!r} cannot be read: {str(error).splitlines()[0]}\n"
            "  Without a network, give a local folder or a .gguf file instead."
        ) from error
    return str(getattr(config, "_commit_hash", None) or "unpinned")


def from_safetensors(folder: str, placement: devices.Placement) -> Any:
    """A causal language model from a folder's (or hub id's) safetensors.

    Raises:
        ModelLoadError: it is no such model, or has no safetensors.
        MemoryError: its weights do not fit.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        _demand_memory(_num_parameters(config) * placement.dtype.itemsize, placement.device, folder)
        with _without_progress_bar():  # mapping takes a moment, and a claim may do it in every sample
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=placement.dtype, use_safetensors=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelLoadError(
            f"{folder!r} cannot be loaded as a causal language model from safetensors: {error}\n"
            "  Only safetensors and GGUF weights are read, and no code of the model's own is run."
        ) from error
    return model.to(placement.device).eval()


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _num_parameters(config: Any) -> int:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(p.numel() for p in skeleton.parameters())


def random_model(config: Any, placement: devices.Placement) -> Any:
    """The config's architecture with seeded random weights of standard deviation 0.02.

    One seeded pool of normal numbers is repeated over every matrix: filling is then as fast as copying, and
    bytes, multiply-accumulates and times do not depend on the values. Norms start at 1, biases at 0.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=placement.dtype, trust_remote_code=False)
    num_bytes = sum(p.numel() for p in model.parameters()) * placement.dtype.itemsize
    _demand_memory(num_bytes, placement.device, config.model_type)
    generator = torch.Generator().manual_seed(RANDOM_SEED)
    pool = torch.randn(_POOL, generator=generator).mul_(0.02).to(placement.device, placement.dtype)
    for module in model.modules():
        for name, hollow in list(module.named_parameters(recurse=False)):
            weight = torch.empty(hollow.shape, dtype=placement.dtype, device=placement.device)
            if weight.dim() < 2:
                weight.fill_(0.0 if name == "bias" else 1.0)
            else:
                _repeat(pool, weight)
            setattr(module, name, torch.nn.Parameter(weight, requires_grad=False))
    model.tie_weights()
    return model.to(placement.device).eval()


def _repeat(pool: torch.Tensor, target: torch.Tensor) -> None:
    flat = target.view(-1)
    for start in range(0, flat.numel(), pool.numel()):
        piece = flat[start : start + pool.numel()]
        piece.copy_(pool[: piece.numel()])


def free_bytes(device: torch.device) -> int:
    """Memory that is free for tensors on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _demand_memory(num_bytes: int, device: torch.device, what: str) -> None:
    """Refuse what cannot fit: on a CPU the system would kill the process instead of raising."""
    free = free_bytes(device)
    if num_bytes > free:
        raise MemoryError(f"{what} needs {num_bytes:,} B of weights and {free:,} B are free on {device}")


def _demand_safetensors(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{folder} holds no config.json: a transformers model folder is wanted")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
        found = f" (found {', '.join(pickled)}: pickled weights are never read)" if pickled else ""
        raise ModelLoadError(
            f"{folder} holds no *.safetensors{found}; convert it with save_pretrained(..., "
            "safe_serialization=True) where you trust it"
        )


def _fingerprint_of(folder: Path) -> str:
    """A short checksum over the names and sizes of the weights and the text of the config."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name}\0{path.stat().st_size}".encode())
    return digest.hexdigest()[:12]


def _tokenizer(folder: str) -> Any | None:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return None  # a model without one is given seeded random tokens
