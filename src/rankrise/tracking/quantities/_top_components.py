"""The leading singular values alone; of circuits, the vectors that belong to them are stored beside the table."""

from torch import Tensor

from rankrise.tracking._change import Change
from rankrise.tracking.quantities._quantity import Quantity


def _measure(change: Change) -> Tensor | None:
    return None if change.leading is None else change.leading.sigma


TOP_COMPONENTS = Quantity("top_components", "spectra", _measure)
