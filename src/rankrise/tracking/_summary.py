"""What a logger gets of a measurement: a few numbers for each layer instead of some for each head."""

import math
from collections.abc import Iterable

from rankrise.heads import CIRCUITS
from rankrise.tracking._measurement import Measurement
from rankrise.tracking._quantities import OF_WEIGHTS, QUANTITIES

PREFIX = "rankrise/"  # every name in a summary begins with it
_SUMMARISED = "stable_rank"  # the quantity in which stages are seen; every run measures it


def layer_summary(measurements: Iterable[Measurement]) -> dict[str, float]:
    """Mean, smallest and largest stable rank over the heads of each layer, for both circuits: six numbers a layer.

    Quantities of the user's own and what probes read are summarised too: over heads where they have heads, and as they
    are otherwise. Vectors, and all other quantities that rankrise knows, stay in the run directory. A head whose number
    is not finite is left out; if no head is left, the number is NaN.

    >>> import torch
    >>> ranks = Measurement("stable_rank", torch.tensor([[1.0, 2.0, 6.0]]), (3,), heads=True, circuit="kq")
    >>> for name, value in layer_summary([ranks]).items():
    ...     print(name, value)
    rankrise/L03/kq/stable_rank/mean 3.0
    rankrise/L03/kq/stable_rank/min 1.0
    rankrise/L03/kq/stable_rank/max 6.0
    """
    found: dict[str, float] = {}
    for measurement in measurements:
        if not _is_shown(measurement):
            continue
        values = measurement.values.detach().cpu().double()
        if measurement.layers is None:
            found[_name(None, measurement)] = values.item()
            continue
        for layer, row in zip(measurement.layers, values.tolist(), strict=True):
            name = _name(layer, measurement)
            if measurement.heads:
                there = [value for value in row if math.isfinite(value)] or [math.nan]
                found |= {f"{name}/mean": math.fsum(there) / len(there), f"{name}/min": min(there)}
                found[f"{name}/max"] = max(there)
            else:
                found[name] = row
    return found


def _is_shown(measurement: Measurement) -> bool:
    if measurement.values.ndim != (measurement.layers is not None) + measurement.heads:
        return False  # a vector
    if measurement.name == _SUMMARISED:
        return measurement.heads and measurement.circuit in CIRCUITS
    return measurement.name not in QUANTITIES and measurement.name not in OF_WEIGHTS


def _name(layer: int | None, measurement: Measurement) -> str:
    """`rankrise/L03/kq/stable_rank`; parts that do not apply are left out."""
    where = "" if layer is None or layer < 0 else f"L{layer:02d}/"
    return f"{PREFIX}{where}{measurement.circuit}{'/' if measurement.circuit else ''}{measurement.name}"
