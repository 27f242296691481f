"""Values as they come back from JSON, and how two of them differ."""

import json
from collections.abc import Iterator
from typing import Any


def plain(value: object) -> Any:
    """The value as JSON gives it back: tuples are lists.

    >>> plain({"betas": (0.9, 0.999)})
    {'betas': [0.9, 0.999]}
    """
    return json.loads(json.dumps(value))


def differences(was: object, now: object) -> str:
    """What differs, in words; empty if nothing does.

    >>> differences({"a": {"rate": 0.1, "seed": 1}}, {"a": {"rate": 0.2, "seed": 1}})
    '`a.rate` was 0.1 and is 0.2'
    """
    return "; ".join(_differences(was, now, ""))


def _differences(was: object, now: object, name: str) -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*was, *now)):
            yield from _differences(was.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    elif was != now:
        yield f"`{name}` was {was!r} and is {now!r}"
