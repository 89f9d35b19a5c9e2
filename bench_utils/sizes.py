"""Sizes in bytes as people write them: GB is 10^9 bytes and GiB 2^30, and neither passes for the other."""

import re
from decimal import Decimal

from bench_utils.settings import ChoiceError

_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNITS = {"B": 1, **_DECIMAL, **_BINARY}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


# More than any machine has, and small enough for every count made from it.
_MOST = 2**60


def parse(text: str, *, least: int = 1) -> int:
    """Bytes of '8GiB', '7.5 GB' or '900MB'; the unit is wanted, its case is not.

    Raises:
        ChoiceError: it is no number with one of the units, or not between `least` bytes and 2^60.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ChoiceError(f"{text!r} is no size: a positive number and a unit are wanted, such as 8GiB or 7.5GB")
    number, unit = match.groups()
    by_lower_case = {name.lower(): size for name, size in UNITS.items()}
    if unit.lower() not in by_lower_case:
        what = f"the unit {unit!r} is unknown" if unit else "it has no unit"
        raise ChoiceError(f"{text!r}: {what}; choose one of {', '.join(UNITS)} (GB is 10^9 bytes, GiB is 2^30)")
    num_bytes = int(Decimal(number) * by_lower_case[unit.lower()])
    if not least <= num_bytes <= _MOST:
        raise ChoiceError(f"{text!r} is {'no memory at all' if num_bytes < least else 'more than any memory'}")
    return num_bytes


def is_decimal(text: str) -> bool:
    """Whether a size that parses is in powers of ten, as memory is sold and not as it is made."""
    return any(text.strip().lower().endswith(unit.lower()) for unit in _DECIMAL)


def in_gib(num_bytes: int) -> str:
    """'7.45 GiB', and what would be 0.00 in MiB."""
    if num_bytes == 0:
        return "0"
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 / 100 else f"{num_bytes / 2**20:.2f} MiB"
