"""Choices: where they come from, and what is said of a bad one."""

import pytest

from bench_utils.settings import ChoiceError, Settings, from_environ


def test_an_explicit_choice_wins_over_the_variable_and_that_over_the_default():
    environ = {"CLAIMS_DTYPE": "float32", "CLAIMS_PROFILE": "quick"}
    settings = from_environ(environ, {"dtype": "float64", "model": None})
    assert settings == Settings(dtype="float64", profile="quick")


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [("profile", "ful", "'full'"), ("dtype", "bfloat", "'bfloat16'"), ("device", "cudaa", "'cuda'")],
)
def test_an_unknown_choice_names_all_and_the_nearest(field, value, nearest):
    with pytest.raises(ChoiceError, match=f"unknown {field} '{value}'.*choose one of.*{nearest}"):
        from_environ({}, {field: value})


def test_a_device_may_carry_its_index():
    assert from_environ({}, {"device": "cuda:1"}).device == "cuda:1"


@pytest.mark.parametrize("name", ["../up", "a/b", "a b", "\\x"])
def test_a_machine_name_that_is_no_plain_folder_is_refused(name):
    with pytest.raises(ChoiceError, match="becomes a folder"):
        from_environ({}, {"machine": name})


def test_dots_alone_are_no_machine_name():
    with pytest.raises(ChoiceError, match="becomes a folder"):
        from_environ({}, {"machine": ".."})
