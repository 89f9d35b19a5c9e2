"""The text of a record: its version, its seal, its JSON Schema, and how older versions become today's."""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from bench_utils.history.entries import RunRecord, record_key

VERSION = 2
_VERSION, _SEAL = "schema_version", "sha256"
_MOST_DIGITS = 300  # a larger whole number is no float
# From each older version to the next. Version 1 had no seal, and everything that version 2 added has a default.
_MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: lambda document: document}


class RecordError(ValueError):
    """A file that is not a record of this schema, or a folder that belongs to another machine."""


def to_document(record: RunRecord) -> dict[str, Any]:
    """What is written: the version, the record, and a seal over both."""
    # As a reader will find it: keys that are numbers become text, which sorts otherwise.
    document = json.loads(json.dumps({_VERSION: VERSION, **record.to_json()}))
    return {**document, _SEAL: _seal(document)}


def from_text(text: str) -> RunRecord:
    """A record of this version or an older one.

    Raises:
        RecordError: no strict JSON, of an unknown version, edited since it was written, or without its fields.
    """
    from pydantic import ValidationError

    try:
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"is not a readable record: {error}") from error
    version = document.get(_VERSION) if isinstance(document, dict) else None
    if type(version) is not int or not 1 <= version <= VERSION:
        raise RecordError(f"has schema version {version!r}; this program reads 1 to {VERSION}")
    if version == VERSION and document.get(_SEAL) != _seal(document):
        raise RecordError("was edited after it was written: its seal does not match its content")
    if version < VERSION and _SEAL in document:
        raise RecordError(f"was edited after it was written: version {version} had no seal")
    for older in range(version, VERSION):
        document = _MIGRATIONS[older](document)
    kept = {name: _printable(value) for name, value in document.items() if name not in (_VERSION, _SEAL)}
    try:
        record: RunRecord = _adapter().validate_json(json.dumps(kept), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise RecordError(f"does not have the fields of a record: {where}: {first['msg']}") from error
    _demand_sense(record)
    return record


def _demand_sense(record: RunRecord) -> None:
    """What every reader relies on and no type says."""
    if "" in record.verdicts:
        raise RecordError("does not have the fields of a record: a verdict of no claim")
    for key, found in record.cases.items():
        if not found.claim or key != record_key(found):
            raise RecordError(f"does not have the fields of a record: {key} is the case {record_key(found)}")
        every = [("", found.samples_s), *((name, lap.samples_s) for name, lap in found.laps.items())]
        if any(min(samples, default=1.0) <= 0 or (name and not samples) for name, samples in every):
            raise RecordError(f"does not have the fields of a record: {key} has times that are none")


def version_of(text: str) -> int:
    """The version that a record's text, which reads well, was written in."""
    return int(json.loads(text)[_VERSION])


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a record's file, for programs in other languages."""
    schema: dict[str, Any] = _adapter().json_schema()
    properties = {_VERSION: {"const": VERSION}, _SEAL: {"type": "string", "pattern": "^[0-9a-f]{64}$"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"A run record of inference-claims, version {VERSION}",
        "properties": {**properties, **schema["properties"]},
        "required": [*properties, *schema["required"]],
    }


def _seal(document: Mapping[str, Any]) -> str:
    """The SHA-256 of a document's canonical text, the seal itself left out."""
    kept = {name: value for name, value in document.items() if name != _SEAL}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@functools.cache
def _adapter() -> Any:
    # Imported where it is needed: a run that only writes has no use for it.
    from pydantic import TypeAdapter

    return TypeAdapter(RunRecord)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text[:40]} is beyond every number")
    return number


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"{text[:40]}... is beyond every number")
    return int(text)


def _printable(value: Any) -> Any:
    """Texts without control characters, which a terminal would obey."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c for c in value if c.isprintable() or c in "\n\t")
    if isinstance(value, dict):
        return {_printable(name): _printable(each) for name, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list) else value
