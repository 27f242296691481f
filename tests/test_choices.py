"""Known names: the nearest is asked for, others are refused."""

import pytest

from rankrise._choices import check_choice, did_you_mean


def test_nearest_or_nothing():
    assert did_you_mean("colour", ["color", "size"]) == "Did you mean 'color'?"
    assert did_you_mean("x" * 10**6, ["color"]) == ""


def test_refusal_lists_all_and_ends_with_the_nearest():
    check_choice("kind", "a", ("a", "b"))
    with pytest.raises(ValueError, match=r"^`kind` must be one of adam, sgd; got 'adma'\. Did you mean 'adam'\?$"):
        check_choice("kind", "adma", ("adam", "sgd"))
    with pytest.raises(ValueError, match=r"^`kind` must be one of adam, sgd; got 7\.$"):
        check_choice("kind", 7, ("adam", "sgd"))
