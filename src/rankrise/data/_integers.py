"""Whole numbers that a user gives: any integer type, but no bool, no float, no text."""

import operator


def as_count(value: object, name: str, *, least: int = 0) -> int:
    """The value as `int`.

    Raises:
        ValueError: Not a whole number, or not in [`least`, 2⁶³).

    >>> as_count(3, "epoch")
    3
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"`{name}` must be a whole number; got {value!r} ({type(value).__name__}).") from None
    if not least <= count < 2**63:
        raise ValueError(f"`{name}` must be at least {least} and below 2**63; got {count}.")
    return count
