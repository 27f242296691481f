"""Whole numbers that a user gives: any integer type, but no bool, no float, no text."""

import operator


def as_count(value: object, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """The value as `int`.

    Raises:
        ValueError: Not a whole number, or not in [`least`, `most`]; unless given, 2⁶³ - 1, for the column `step`.

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
    """Python refuses to print very long integers."""
    return str(count) if count.bit_length() < 200 else f"one of {count.bit_length()} bits"
