"""The fields of a spec by their paths, such as `model.init_scale`: which there are, and a spec with other values."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rankrise._arguments import did_you_mean
from rankrise.lab.experiments._spec import from_json, to_json
from rankrise.lab.experiments.kinds import Spec, kind_of


def field_names(spec: Spec) -> list[str]:
    """Return the paths of the fields of a spec that can be given other values.

    >>> from rankrise.lab.experiments import StagesSpec
    >>> field_names(StagesSpec(t_end=1.0))[:3]
    ['task.dim', 'task.tokens', 'task.samples']
    """
    parts = kind_of(spec).parts
    names: list[str] = []
    for field in dataclasses.fields(spec):
        if field.name in parts:
            inner = [inner.name for inner in dataclasses.fields(getattr(spec, field.name))]
            names += [f"{field.name}.{name}" for name in inner if name not in parts[field.name].omit]
        else:
            names.append(field.name)
    return names


def with_fields(spec: Spec, values: Mapping[str, Any]) -> Spec:
    """Return the spec with other values of some of its fields.

    Args:
        spec: The spec.
        values: JSON values by the path of the field.

    Raises:
        ValueError: The spec has no such field, or a value is of the wrong type or out of its range; the message names
            the field.

    >>> from rankrise.lab.experiments import StagesSpec
    >>> with_fields(StagesSpec(t_end=1.0), {"task.dim": 4, "seed": 7}).task.dim
    4
    >>> with_fields(StagesSpec(t_end=1.0), {"dim": 4})
    Traceback (most recent call last):
    ValueError: A field must be one of the spec's; got 'dim'. Did you mean 'task.dim'? The fields: task.dim, ...
    """
    known = field_names(spec)
    record = to_json(spec)
    for path, value in values.items():
        if path not in known:
            inner = next((name for name in known if name.endswith(f".{path}")), "")
            hint = f"Did you mean {inner!r}?" if inner else did_you_mean(path, known)
            told = f"{hint} The fields: {', '.join(known)}.".lstrip()
            raise ValueError(f"A field must be one of the spec's; got {path!a:.80}. {told}")
        part, _, name = path.rpartition(".")
        (record[part] if part else record)[name] = value
    return from_json(record)
