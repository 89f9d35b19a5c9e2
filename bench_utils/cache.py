"""The one folder that this project writes outside the working tree: the user's cache."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs


def cache_dir() -> Path:
    """The user's cache folder of this project (not created)."""
    return platformdirs.user_cache_path("inference-claims", appauthor=False)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write strict JSON by rename: a reader, or a kill, sees the old file or the new one, never half of one.

    Raises:
        ValueError: a NaN or an infinity in the document.
        OSError: the disk is full or the folder not writable; the old file is untouched.
    """
    write_text(path, json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """The same for any text, in UTF-8; what no UTF-8 has is replaced.

    Raises:
        OSError: as above.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(scratch).chmod(0o644)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
