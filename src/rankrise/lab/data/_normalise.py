"""From stored bytes to network input: (x - mean) / std per channel, the same bits on every device."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation per channel, of pixels scaled to [0, 1] by `white`, the byte that is white."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    white: int = 255

    def tables(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Shift and scale, (C, 1, 1) each, of stored bytes."""
        shift = torch.tensor(self.mean, dtype=torch.float64) * self.white
        scale = 1 / (torch.tensor(self.std, dtype=torch.float64) * self.white)
        return shift[:, None, None].float().to(device), scale[:, None, None].float().to(device)


# Of the training images, as published by every CIFAR and ImageNet recipe; digits measured here; others centred.
CIFAR10 = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DIGITS = Normalisation((0.3053,), (0.3760,), white=16)
CENTRED = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def normalise(images: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """(images - shift) · scale in float32: two roundings, never fused, so equal on every device."""
    return torch.sub(images, shift).mul_(scale)
