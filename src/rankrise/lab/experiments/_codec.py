"""Frozen dataclasses of JSON values, to JSON and back; whatever is not understood is refused by its name.

Fields hold text, numbers, booleans, None and tuples of them, as their annotations say. A float field takes a whole
number and makes it a float, so that 1 and 1.0 are one value with one spelling.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rankrise._arguments import did_you_mean

T = TypeVar("T")
_hints = functools.cache(get_type_hints)  # evaluating the annotations of a class costs more than encoding it


def encode(config: object, *, omit: Collection[str] = (), keep_defaults: bool = True) -> dict[str, object]:
    """The fields of a config as JSON values.

    Args:
        config: A dataclass.
        omit: Fields to leave out.
        keep_defaults: Whether to write fields that have their default value. A field with the metadata `omit_default`
            was added after specs had been stored, and is never written while it has its default, so that the hashes
            of those specs stay as they are.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Example:
    ...     rate: float = 0.1
    ...     betas: tuple[float, float] = (0.9, 0.999)
    >>> encode(Example(rate=1))
    {'rate': 1.0, 'betas': [0.9, 0.999]}
    >>> encode(Example(rate=1), keep_defaults=False)
    {'rate': 1.0}
    """
    assert dataclasses.is_dataclass(config)
    assert not isinstance(config, type)
    hints = _hints(type(config))
    return {
        field.name: _plain(_read_value(getattr(config, field.name), hints[field.name], field.name))
        for field in dataclasses.fields(config)
        if field.name not in omit
        and (
            getattr(config, field.name) != _default(field) or keep_defaults > field.metadata.get("omit_default", False)
        )
    }


def decode(
    cls: type[T],
    record: Mapping[str, object],
    *,
    where: str,
    omit: Collection[str] = (),
    read: Mapping[str, Callable[[object], object]] | None = None,
) -> T:
    """Build a config from JSON values; fields that are not given keep their defaults.

    Args:
        cls: A dataclass.
        record: What `encode` gives.
        where: What error messages call the config.
        omit: Fields that must not be given.
        read: How to read fields that hold configs themselves.

    Raises:
        ValueError: A field is unknown or missing, or has a value of another type; the message names it.
    """
    fields = {field.name: field for field in dataclasses.fields(cls) if field.name not in omit}  # type: ignore[arg-type]
    for name in record:
        if name not in fields:
            raise ValueError(f"{where} must have known fields only; got {name!r}. {choices(name, fields)}")
    missing = [name for name, field in fields.items() if name not in record and _default(field) is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{where} must have the field {missing[0]!r}; it is missing. Add it.")
    hints = _hints(cls)  # type: ignore[arg-type]  # every class can be hashed
    read = read or {}
    values = {
        name: read[name](value) if name in read else _read_value(value, hints[name], f"{where}.{name}")
        for name, value in record.items()
    }
    try:
        return cls(**values)
    except (ValueError, TypeError, OverflowError) as error:  # the config's own rules
        raise ValueError(f"{where}: {error}") from error


def choices(name: object, known: Collection[str]) -> str:
    """A hint for a name that is not known: the nearest known name, and all of them.

    >>> choices("smal", ["smoke", "small"])
    "Did you mean 'small'? Known: small, smoke."
    """
    return f"{did_you_mean(name, known)} Known: {', '.join(sorted(known))}.".lstrip()


def _default(field: "dataclasses.Field[Any]") -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _read_value(value: object, hint: Any, where: str) -> object:
    """The value as its annotation wants it, or an error that names the field."""
    found = _match(value, hint)
    if found is _NO:
        options = [str(option) for option in get_args(hint)] if get_origin(hint) is Literal else []
        remedy = choices(value, options) if options and isinstance(value, str) else "Change it."
        raise ValueError(f"{where} must be {_describe(hint)}; got {_shorten(value)}. {remedy}")
    return found


_NO = object()  # does not match


def _match(value: object, hint: Any) -> object:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        matches = (_match(value, option) for option in get_args(hint))
        return next((found for found in matches if found is not _NO), _NO)
    if origin is Literal:
        return value if isinstance(value, str) and value in get_args(hint) else _NO
    if origin is tuple:
        return _match_tuple(value, get_args(hint))
    if hint is float:
        return _match_float(value)
    return value if hint in (str, int, bool, types.NoneType) and type(value) is hint else _NO


def _match_float(value: object) -> object:
    if type(value) not in (int, float):
        return _NO
    try:
        number = float(value) + 0.0  # type: ignore[arg-type]  # -0.0 becomes 0.0, its equal
    except OverflowError:
        return _NO
    return number if math.isfinite(number) else _NO


def _match_tuple(value: object, hints: tuple[Any, ...]) -> object:
    if not isinstance(value, list | tuple):
        return _NO
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        return _NO
    items = tuple(_match(item, hint) for item, hint in zip(value, hints, strict=True))
    return _NO if any(item is _NO for item in items) else items


def _describe(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in args)
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return f"a list, each {_describe(args[0])}"
    if origin is tuple:
        return f"a list of {len(args)} ({', '.join(_describe(item) for item in args)})"
    names = {
        str: "text",
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        types.NoneType: "null",
    }
    return names[hint]


def _shorten(value: object) -> str:
    try:
        text = ascii(value)  # a hostile value cannot move the cursor of a terminal
    except (ValueError, RecursionError):  # an integer of very many digits; very deep nesting
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
