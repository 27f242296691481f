"""Checks of arguments that a user gives: names out of a list of known ones, and whole numbers."""

import operator
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a question that ends an error message and names the nearest known name; empty if no name is near.

    >>> did_you_mean("adma", ["adam", "sgd"])
    "Did you mean 'adam'?"
    """
    import difflib

    close = difflib.get_close_matches(str(name)[:100], list(known), n=1)
    return f"Did you mean {close[0]!r:.100}?" if close else ""


def check_choice(setting: str, value: object, known: Iterable[str]) -> None:
    """Refuse a value that is not among the known names.

    Raises:
        ValueError: If the value is not known; the message lists all known names and ends with the nearest one.
    """
    names = tuple(known)
    if value not in names:
        message = f"`{setting}` must be one of {', '.join(names)}; got {value!r}. {did_you_mean(value, names)}"
        raise ValueError(message.rstrip())


def as_count(value: object, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return a whole number as `int`; any integer type is accepted, but no bool, no float and no text.

    Args:
        value: The number.
        name: The argument's name, for the message.
        least: Smallest allowed number.
        most: Largest allowed number; the default is the largest that the column `step` of a table holds.

    Raises:
        ValueError: If the value is not a whole number, or does not lie in [`least`, `most`].

    >>> as_count(3, "step")
    3
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"`{name}` must be a whole number; got {value!r} ({type(value).__name__}).") from None
    if count < least:
        raise ValueError(f"`{name}` must be at least {least}; got {_short(count)}.")
    if count > most:
        limit = "below 2**63" if most == 2**63 - 1 else f"at most {most}"
        raise ValueError(f"`{name}` must be {limit}; got {_short(count)}.")
    return count


def _short(count: int) -> str:
    """Return the number in decimals, or its length in bits where Python refuses to print so many digits."""
    return str(count) if count.bit_length() < 200 else f"one of {count.bit_length()} bits"
