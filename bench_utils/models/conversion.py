"""GGUF to safetensors, once: de-quantizing costs seconds on every load, mapping a file does not."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model

from bench_utils.cache import cache_dir, write_json
from bench_utils.models.assets import sha256_of
from bench_utils.models.errors import ModelLoadError

# Raise it when the conversion writes something else for the same file.
CONVERTER_VERSION = 1
_MANIFEST = "conversion.json"


def converted(gguf: Path, key: str) -> Path:
    """A folder in the user's cache holding the dequantized float32 model and its tokenizer.

    `key` is the head of the file's checksum: the same content is never converted twice.
    """
    target = folder_of(gguf, key)
    if not is_whole(target):
        _convert(gguf, target)
    return target


def folder_of(gguf: Path, key: str) -> Path:
    """Where the conversion of a GGUF file with this key lies."""
    return cache_dir() / "converted" / f"{gguf.stem}-{key}-v{CONVERTER_VERSION}"


def is_whole(folder: Path) -> bool:
    """Whether a conversion is complete: its manifest names the size of the weights that lie beside it."""
    weights = folder / "model.safetensors"
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        return bool(weights.stat().st_size == manifest["weights_bytes"])
    except (OSError, ValueError, KeyError):
        return False


def is_intact(folder: Path) -> bool:
    """Whether the converted weights still have the SHA-256 they were written with (reads them all)."""
    return is_whole(folder) and sha256_of(folder / "model.safetensors") == weights_sha256(folder)


def weights_sha256(folder: Path) -> str:
    """The SHA-256 that the converted weights were written with."""
    return str(json.loads((folder / _MANIFEST).read_text())["weights_sha256"])


def dequantize(gguf: Path) -> Any:
    """The model of a GGUF file, its weights dequantized to float32 (slow: seconds of CPU)."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
    )
    return model.eval()


def _read(gguf: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    try:
        return dequantize(gguf), AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    except Exception as error:  # the readers below raise bare exceptions on a bad file
        raise ModelLoadError(
            f"{gguf.name} cannot be read as a GGUF causal language model: {error}\n"
            "  Its architecture must be one that transformers reads from GGUF, and the file whole."
        ) from error


def _convert(gguf: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert-") as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        model, tokenizer = _read(gguf)
        # It is no longer a GGUF model: the weights below are plain float32.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        weights = folder / "model.safetensors"
        save_model(model, str(weights), metadata={"format": "pt"})
        model.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        manifest = {
            "converter_version": CONVERTER_VERSION,
            "source": gguf.name,
            "weights_bytes": weights.stat().st_size,
            "weights_sha256": sha256_of(weights),
        }
        write_json(folder / _MANIFEST, manifest)
        shutil.rmtree(target, ignore_errors=True)  # an incomplete earlier attempt
        folder.replace(target)
