"""Sizes: GB and GiB are told apart, and what is neither is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_utils.settings import ChoiceError
from bench_utils.sizes import UNITS, in_gib, is_decimal, parse


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("8GB", 8_000_000_000),
        ("8GiB", 8_589_934_592),
        ("7.5 gib", 8_053_063_680),
        (" 900 MB ", 900_000_000),
        ("0.1GB", 100_000_000),
        ("1024B", 1024),
        ("2tib", 2**41),
    ],
)
def test_a_number_and_a_unit_are_bytes(text, num_bytes):
    assert parse(text) == num_bytes


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(UNITS)))
def test_every_unit_is_read_in_any_case(number, unit):
    assert parse(f"{number}{unit}") == parse(f"{number} {unit.upper()}") == number * UNITS[unit]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8", "it has no unit; choose one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"),
        ("8G", "the unit 'G' is unknown"),
        ("8 parsecs", "the unit 'parsecs' is unknown"),
        ("-8GB", "'-8GB' is no size: a positive number"),
        ("GB", "is no size"),
        ("", "is no size"),
        ("1e9GB", "is no size"),
        ("nanGB", "is no size"),
        ("0GiB", "is no memory at all"),
        ("0.4B", "is no memory at all"),
        ("2000000000TiB", "is more than any memory"),
    ],
)
def test_what_is_no_size_says_why(text, words):
    with pytest.raises(ChoiceError, match=words):
        parse(text)


def test_powers_of_ten_are_told_from_powers_of_two():
    assert [is_decimal(text) for text in ("8GB", "8 gb ", "8GiB", "8B")] == [True, True, False, False]
    assert [in_gib(num) for num in (8_000_000_000, 2**30 // 100 + 1, 1_000_000, 0)] == [
        "7.45 GiB",
        "0.01 GiB",
        "0.95 MiB",
        "0",
    ]


def test_nothing_is_a_size_where_nothing_is_meant():
    assert parse("0B", least=0) == 0


def test_a_size_is_exact_beyond_what_a_float_holds():
    assert parse("9007199254740993B") == 9_007_199_254_740_993
