"""A model's config by the model's name: no weights are fetched or read."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bench_utils.models import catalog, sources
from bench_utils.models.catalog import Source, SourceKind
from bench_utils.models.errors import ModelLoadError
from bench_utils.models.shapes import chapter_config

# transformers fills in what a config leaves out: a file that says nothing would pass for the family's first model.
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
# These too, in families that have a number of their own for them.
_NEEDED_WHERE_DEFAULTED = (
    *("num_key_value_heads", "head_dim", "intermediate_size", "ffn_dim", "sliding_window", "attention_chunk_size"),
    *("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank"),
)
# A model of several parts leaves to its family what is the same in all its sizes.
_NEEDED_OF_A_PART = ("num_hidden_layers", "hidden_size")
_OTHER_NAMES = {"hidden_size": "n_embed"}  # bloom's, which its class takes and does not list
_MOST_LAYERS = 2_000
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Configured:
    """A config and what only its file tells: the positions it was made for, and what its weights are packed in."""

    name: str
    config: Any
    most_positions: int | None
    packed_in: str = ""


def config_of(model: str, *, also: tuple[str, ...] = ()) -> Configured:
    """The config of a built-in, a hub id, a folder, a config.json, or a GGUF file's own metadata.

    Raises:
        ChoiceError: the name means nothing; `also` are names that the caller understands.
        ModelLoadError: there is no config, or it lacks a field, or is of no causal decoder.
    """
    path = Path(model)
    if path.suffix.lower() == ".json" and path.is_file():
        return _read(path, path.parent.resolve().name)
    source = catalog.resolve(model, also=also)
    if source.kind is SourceKind.RANDOM:
        return _configured(source.name, chapter_config(), True, {})
    if source.kind is SourceKind.GGUF:
        return _configured(source.name, _of_gguf(source), True, {})
    if source.kind is SourceKind.HUB:
        return _read(sources.hub_config(source.name), source.name)
    return _read((source.path or sources.embedded_folder()) / "config.json", source.name)


def _configured(name: str, config: Any, says_positions: bool, written: dict[str, Any]) -> Configured:
    positions = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if says_positions and positions is not None and positions < 1:
        raise ModelLoadError(f"the config of {name} has max_position_embeddings={positions}: less than one")
    packed_in = (written.get("quantization_config") or {}).get("quant_method", "")
    return Configured(name, config, positions if says_positions else None, str(packed_in))


def _read(path: Path, name: str) -> Configured:
    from transformers import AutoConfig

    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        _demand_causal(written.get("architectures") or [], name)
    except ModelLoadError:
        raise
    except Exception as error:  # transformers validates fields with exceptions of many kinds
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise ModelLoadError(f"the config of {name} cannot be read: {reason}") from error
    decoder = config.get_text_config(decoder=True)
    is_part = decoder is not config
    part = next((each for each in written.values() if _is_config_of(each, decoder)), {}) if is_part else written
    _demand_fields(part, decoder, name, is_part)
    return _configured(name, config, _has(part, decoder, "max_position_embeddings"), written)


def _of_gguf(source: Source) -> Any:
    from transformers import AutoConfig

    assert source.path is not None
    try:
        return AutoConfig.from_pretrained(source.path.parent, gguf_file=source.path.name, trust_remote_code=False)
    except Exception as error:  # the reader raises what it meets on a bad file
        raise ModelLoadError(f"{source.name} has no metadata that can be read: {error}") from error


def _demand_fields(written: dict[str, Any], config: Any, name: str, is_part: bool) -> None:
    defaults = {each.name: each.default for each in fields(config)}
    defaulted = [
        field
        for field in _NEEDED_WHERE_DEFAULTED
        if isinstance(defaults.get(field), int) and getattr(config, field) is not None
    ]
    for field in _NEEDED_OF_A_PART if is_part else (*_NEEDED, *defaulted):
        if not _has(written, config, field):
            raise ModelLoadError(f"the config of {name} lacks the field {field}: without it nothing can be counted")
    if config.num_hidden_layers > _MOST_LAYERS:
        raise ModelLoadError(f"the config of {name} has num_hidden_layers={config.num_hidden_layers:,}: too many")


def _has(written: dict[str, Any], config: Any, field: str) -> bool:
    return bool({field, config.attribute_map.get(field), _OTHER_NAMES.get(field)} & set(written))


def _is_config_of(part: Any, decoder: Any) -> bool:
    return isinstance(part, dict) and part.get("model_type") == decoder.model_type


def _demand_causal(architectures: list[str] | str, name: str) -> None:
    architectures = [architectures] if isinstance(architectures, str) else architectures
    if architectures and not any(known.endswith(_CAUSAL) for known in architectures):
        raise ModelLoadError(f"{name} is {', '.join(architectures)}: no causal language model, it has no KV cache")
