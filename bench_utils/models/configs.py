"""A model's config by the model's name: no weights are fetched or read."""

import json
from pathlib import Path
from typing import Any

from bench_utils.models import catalog, sources
from bench_utils.models.catalog import Source, SourceKind
from bench_utils.models.errors import ModelLoadError
from bench_utils.models.shapes import chapter_config

# transformers fills in what a config leaves out: a file that says nothing would pass for the family's first model.
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
# A model of several parts leaves to its family what is the same in all its sizes.
_NEEDED_OF_A_PART = ("num_hidden_layers", "hidden_size")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def config_of(model: str, *, also: tuple[str, ...] = ()) -> tuple[str, Any]:
    """A name and a config: of a built-in, a hub id, a folder, a config.json, or a GGUF file's own metadata.

    Raises:
        ChoiceError: the name means nothing; `also` are names that the caller understands.
        ModelLoadError: there is no config, or it lacks a field, or is of no causal decoder.
    """
    path = Path(model)
    if path.suffix.lower() == ".json" and path.is_file():
        return path.parent.resolve().name, _read(path, model)
    source = catalog.resolve(model, also=also)
    if source.kind is SourceKind.RANDOM:
        return source.name, chapter_config()
    if source.kind is SourceKind.GGUF:
        return source.name, _of_gguf(source)
    if source.kind is SourceKind.HUB:
        return source.name, _read(sources.hub_config(source.name), source.name)
    folder = source.path or sources.embedded_folder()
    return source.name, _read(folder / "config.json", source.name)


def _read(path: Path, name: str) -> Any:
    from transformers import AutoConfig

    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # transformers validates fields with exceptions of many kinds
        raise ModelLoadError(
            f"the config of {name} cannot be read: {str(error).strip().splitlines()[0]}"
        ) from error
    _demand_fields(written, config, name)
    _demand_causal(written, name)
    return config


def _of_gguf(source: Source) -> Any:
    from transformers import AutoConfig

    assert source.path is not None
    try:
        return AutoConfig.from_pretrained(source.path.parent, gguf_file=source.path.name, trust_remote_code=False)
    except Exception as error:  # the reader raises what it meets on a bad file
        raise ModelLoadError(f"{source.name} has no metadata that can be read: {error}") from error


def _demand_fields(written: Any, config: Any, name: str) -> None:
    decoder = config.get_text_config(decoder=True)
    is_part = decoder is not config
    if is_part:
        written = next((part for part in written.values() if _is_config_of(part, decoder)), {})
    for field in _NEEDED_OF_A_PART if is_part else _NEEDED:
        if not {field, decoder.attribute_map.get(field)} & set(written):
            raise ModelLoadError(f"the config of {name} lacks the field {field}: without it nothing can be counted")


def _is_config_of(part: Any, decoder: Any) -> bool:
    return isinstance(part, dict) and part.get("model_type") == decoder.model_type


def _demand_causal(written: dict[str, Any], name: str) -> None:
    architectures = written.get("architectures") or []
    if architectures and not any(known.endswith(_CAUSAL) for known in architectures):
        raise ModelLoadError(
            f"{name} is {', '.join(architectures)}: not a causal language model, it has no KV cache"
        )
