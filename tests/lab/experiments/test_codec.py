"""Configs go through JSON and back; what is not understood is named."""

import re
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from rankrise.lab.experiments._codec import choices, decode, encode


@dataclass(frozen=True)
class Example:
    count: int
    rate: float = 0.1
    name: str | None = None
    is_on: bool = False
    mode: Literal["cosine", "constant"] = "cosine"
    pair: tuple[float, float] = (0.9, 0.999)
    words: tuple[str, ...] = ()


FULL = Example(3, 0.5, "x", True, "constant", (0.1, 0.2), ("flip", "crop"))


@pytest.mark.parametrize("config", [Example(3), FULL])
def test_round_trip(config):
    assert decode(Example, encode(config), where="it") == config
    assert decode(Example, encode(config, keep_defaults=False), where="it") == config


def test_defaults_are_left_out_on_request():
    assert encode(Example(3), keep_defaults=False) == {"count": 3}
    assert encode(replace(FULL, name=None), keep_defaults=False).keys() == encode(FULL).keys() - {"name"}


def test_whole_numbers_in_float_fields_are_floats():
    assert repr(encode(Example(3, rate=2))["rate"]) == "2.0"
    assert repr(decode(Example, {"count": 3, "pair": [0, 1]}, where="it").pair) == "(0.0, 1.0)"
    assert repr(encode(Example(3, rate=-0.0))["rate"]) == "0.0"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"count": 3, "raet": 1}, "it must have known fields only; got 'raet'. Did you mean 'rate'? Known: count, "),
        ({"rate": 1}, "it must have the field 'count'; it is missing"),
        ({"count": 3.0}, "it.count must be a whole number; got 3.0"),
        ({"count": True}, "it.count must be a whole number; got True"),
        ({"count": None}, "it.count must be a whole number; got None"),
        ({"count": 1, "rate": "fast"}, "it.rate must be a finite number; got 'fast'"),
        ({"count": 1, "rate": float("nan")}, "it.rate must be a finite number; got nan"),
        ({"count": 1, "rate": 10**400}, "it.rate must be a finite number; got 1000"),
        ({"count": 1, "rate": 10**5000}, "it.rate must be a finite number; got a int"),
        ({"count": 1, "rate": True}, "it.rate must be a finite number; got True"),
        ({"count": 1, "is_on": 1}, "it.is_on must be true or false; got 1"),
        ({"count": 1, "name": 5}, "it.name must be text or null; got 5"),
        (
            {"count": 1, "mode": "cosin"},
            "it.mode must be one of 'cosine', 'constant'; got 'cosin'. Did you mean 'cosine'",
        ),
        ({"count": 1, "mode": ["cosine"]}, "it.mode must be one of 'cosine', 'constant'; got ['cosine']"),
        ({"count": 1, "pair": [1]}, "it.pair must be a list of 2 (a finite number, a finite number); got [1]"),
        ({"count": 1, "pair": 1}, "it.pair must be a list of 2"),
        ({"count": 1, "words": ["a", 1]}, "it.words must be a list, each text; got ['a', 1]"),
        ({"count": 1, "name": {"\x1b[2J": "x" * 1000}}, r"it.name must be text or null; got {'\x1b[2J': 'xxx"),
    ],
)
def test_what_is_wrong_is_named(record, message):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        decode(Example, record, where="it")
    assert len(str(raised.value)) < 300


def test_omitted_fields_are_unknown():
    assert "count" not in encode(FULL, omit=("count",))
    with pytest.raises(ValueError, match="got 'name'"):
        decode(Example, {"count": 1, "name": "x"}, where="it", omit=("name",))


def test_rules_of_the_config_are_passed_on():
    @dataclass(frozen=True)
    class Positive:
        count: int

        def __post_init__(self):
            if self.count < 1:
                raise ValueError(f"`count` must be positive; got {self.count}.")

    with pytest.raises(ValueError, match=r"^it: `count` must be positive; got 0\.$"):
        decode(Positive, {"count": 0}, where="it")


def test_choices_without_a_near_one():
    assert choices("zzz", ["b", "a"]) == "Known: a, b."
