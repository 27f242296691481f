"""Checks of arguments: unknown names are refused with the nearest one, whole numbers within bounds are accepted."""

import numpy as np
import pytest

from rankrise._arguments import as_count, check_choice, did_you_mean


def test_nearest_or_nothing():
    assert did_you_mean("colour", ["color", "size"]) == "Did you mean 'color'?"
    assert did_you_mean("x" * 10**6, ["color"]) == ""


def test_refusal_lists_all_and_ends_with_the_nearest():
    check_choice("kind", "a", ("a", "b"))
    with pytest.raises(ValueError, match=r"^`kind` must be one of adam, sgd; got 'adma'\. Did you mean 'adam'\?$"):
        check_choice("kind", "adma", ("adam", "sgd"))
    with pytest.raises(ValueError, match=r"^`kind` must be one of adam, sgd; got 7\.$"):
        check_choice("kind", 7, ("adam", "sgd"))


def test_any_integer_type_becomes_an_int():
    assert type(as_count(np.int32(3), "step")) is int


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, r"`n` must be a whole number; got True \(bool\)"),
        (2.0, r"`n` must be a whole number; got 2\.0 \(float\)"),
        ("2", r"`n` must be a whole number; got '2' \(str\)"),
        (0, r"`n` must be at least 1; got 0"),
        (11, r"`n` must be at most 10; got 11"),
    ],
)
def test_refusals(value, message):
    with pytest.raises(ValueError, match=message):
        as_count(value, "n", least=1, most=10)


def test_a_number_too_long_to_print():
    with pytest.raises(ValueError, match=r"`n` must be at most 10; got one of 33216 bits"):
        as_count(10**9999, "n", most=10)


def test_limit_of_the_column_step():
    with pytest.raises(ValueError, match=r"`step` must be below 2\*\*63; got 9223372036854775808"):
        as_count(2**63, "step")
