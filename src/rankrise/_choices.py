"""The nearest known name to one that is not known."""

from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A question to end an error message with; empty if nothing is near.

    >>> did_you_mean("adma", ["adam", "sgd"])
    "Did you mean 'adam'?"
    """
    import difflib

    close = difflib.get_close_matches(str(name)[:100], list(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else ""


def check_choice(setting: str, value: object, known: Iterable[str]) -> None:
    """Refuse a value that is not among the known ones.

    Raises:
        ValueError: With all of them, and the nearest.
    """
    names = tuple(known)
    if value not in names:
        message = f"`{setting}` must be one of {', '.join(names)}; got {value!r}. {did_you_mean(value, names)}"
        raise ValueError(message.rstrip())
