"""What a user may choose, from options or from the CLAIMS_* variables, and nothing else."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

PROFILES = ("quick", "full")
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "mps")
# Folders of results that are no machine's: asv's history, and below each machine what the gate left.
RESERVED = ("asv", "gate")
# The user's own files, by the names of their options.
FILES = ("trace", "corpus", "questions")


class ChoiceError(ValueError):
    """A choice that does not exist; the message lists those that do and the nearest match."""


class NotApplicableError(NotImplementedError):
    """A case that means nothing on this model or machine; the message says why. asv skips on its base class."""


def unknown_choice(kind: str, given: str, choices: Iterable[str]) -> ChoiceError:
    """An error for `given` that names every choice and the nearest one."""
    known = list(choices)
    nearest = difflib.get_close_matches(given.lower(), known, n=1, cutoff=0.4)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return ChoiceError(f"unknown {kind} {given!r}: choose one of {', '.join(known)}.{hint}")


@dataclass(frozen=True)
class Settings:
    """The user's choices. Every field is an option --claims-<name> and a variable CLAIMS_<NAME>."""

    model: str = "smollm2"
    device: str = "auto"
    dtype: str = "auto"
    profile: str = "full"
    machine: str = ""
    draft: str = ""
    trace: str = ""
    corpus: str = ""
    questions: str = ""

    @property
    def is_quick(self) -> bool:
        """Whether the short profile was chosen."""
        return self.profile == "quick"

    def checked(self) -> "Settings":
        """Itself, if every closed choice and every file exist; the model's name is checked by `models.catalog`.

        Raises:
            ChoiceError: an unknown profile, dtype or device, or a file that is not there.
        """
        if self.profile not in PROFILES:
            raise unknown_choice("profile", self.profile, PROFILES)
        if self.dtype not in DTYPES:
            raise unknown_choice("dtype", self.dtype, DTYPES)
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise unknown_choice("device", self.device, [*DEVICES, "cuda:N"])
        if self.machine and not self.machine.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ChoiceError(
                f"machine name {self.machine!r} becomes a folder: use letters, digits, '-', '_' and '.'"
            )
        if self.machine in RESERVED:
            raise ChoiceError(f"machine name {self.machine!r} is a folder of other results: choose another")
        for name in FILES:
            if (path := getattr(self, name)) and not Path(path).is_file():
                raise ChoiceError(f"there is no {name} file {path!r}")
        return self


def from_environ(
    environ: Mapping[str, str] = os.environ, chosen: Mapping[str, str | None] | None = None
) -> Settings:
    """Settings from explicit choices first, then the CLAIMS_* variables, then the defaults."""
    chosen = chosen or {}
    values = {
        f.name: chosen.get(f.name) or environ.get(f"CLAIMS_{f.name.upper()}") or f.default for f in fields(Settings)
    }
    return replace(Settings(), **{name: str(value) for name, value in values.items()}).checked()
