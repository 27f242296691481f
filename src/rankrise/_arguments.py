"""Checks of arguments that a user gives: names out of a list of known ones, whole numbers, paths that are not there."""

import operator
import re
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


_HUB_NAME = re.compile(r"(?:https?:/+huggingface\.co/|hf:/+)?((?:[\w-][\w.-]*/)?[\w-][\w.-]*?)(?:@[\w./-]*)?", re.ASCII)
_FILE_SUFFIX = re.compile(r"\.(safetensors|bin|pt|pth|th|ckpt|gguf|json|npz|txt)$")


def hub_hint(path: object) -> str:
    """Return a sentence that follows "... does not exist." where a path may be meant as a name on the Hugging Face hub.

    It is empty where the path cannot be such a name; otherwise it begins with a space.

    >>> hub_hint("gpt2"), hub_hint("me/model.safetensors"), hub_hint("/home/me/model")
    (' If it is a model on the hub, name its owner and its revision, such as owner/gpt2@main.', '', '')
    >>> hub_hint("me/model")
    ' If it is a model on the hub, name its revision, such as me/model@main.'
    """
    match = _HUB_NAME.fullmatch(str(path)[:200])
    if match is None or _FILE_SUFFIX.search(match[1]):
        return ""
    name = match[1]
    what, full = ("its revision", name) if "/" in name else ("its owner and its revision", f"owner/{name}")
    return f" If it is a model on the hub, name {what}, such as {full}@main."


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
