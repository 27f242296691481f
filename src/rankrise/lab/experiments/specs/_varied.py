"""A variant of a spec: `replace`, one level down."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rankrise.lab.experiments.kinds import TrainingSpec

_AS_IT_IS: Mapping[str, Any] = MappingProxyType({})


def varied(
    spec: TrainingSpec,
    *,
    data: Mapping[str, Any] = _AS_IT_IS,
    model: Mapping[str, Any] = _AS_IT_IS,
    training: Mapping[str, Any] = _AS_IT_IS,
) -> TrainingSpec:
    """The spec with other values in its parts."""
    return replace(
        spec,
        data=replace(spec.data, **data),
        model=replace(spec.model, **model),
        training=replace(spec.training, **training),
    )
