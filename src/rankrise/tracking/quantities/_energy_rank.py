"""Directions for 90, 95 and 99% of `Σ σ²`: what a LoRA of that rank would keep. The index is the percentage."""

import torch
from torch import Tensor

from rankrise.linalg import energy_rank
from rankrise.tracking._change import Change
from rankrise.tracking.quantities._quantity import Quantity

_PERCENT = (90, 95, 99)


def _measure(change: Change) -> Tensor:
    return torch.stack([energy_rank(change.sigma, percent / 100) for percent in _PERCENT], dim=-1)


ENERGY_RANK = Quantity("energy_rank", "spectra", _measure, index=_PERCENT)
