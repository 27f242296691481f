"""Flips and crops of a whole batch by one gather, from random bits that belong to the sample and not to the batch.

An augmented image is the stored one seen through index tables: pixel (y, x) comes from (rows[y], columns[x]). The
tables of an epoch are made in a few kernels on the device; a batch then costs one gather and two more to normalise it.
"""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankrise.lab.data._mix import Purpose, below, bits, key


class Views(NamedTuple):
    """Where the pixels of augmented images come from: row and column indices, (n, S) each, int64."""

    rows: Tensor
    columns: Tensor

    def cut(self, begin: int, end: int) -> "Views":
        """Those of the images [begin, end)."""
        return Views(self.rows[begin:end], self.columns[begin:end])


def margin(size: int, augment: Collection[str]) -> int:
    """Pixels of black added on every side before a random crop: 4 of CIFAR's 32, size // 8 in general.

    >>> margin(32, ("crop",)), margin(64, ("flip", "crop")), margin(32, ("flip",))
    (4, 8, 0)
    """
    return size // 8 if "crop" in augment else 0


def with_margin(images: Tensor, augment: Collection[str]) -> Tensor:
    """Images (n, C, S, S) with the black border that `draw_views` counts on."""
    width = margin(images.shape[-1], augment)
    return pad(images, (width,) * 4) if width else images


def draw_views(index: Tensor, *, size: int, augment: Collection[str], seed: int, epoch: int) -> Views:
    """Flip and crop for the samples `index`, each a function of (seed, epoch, sample) alone.

    Args:
        index: Samples of the training set, (n,), on the device of the images.
        size: Side S of the images, without their margin.
        augment: `"flip"`: left and right change places for half of them. `"crop"`: an S × S window of the image with
            its margin, uniform.
        seed: Of the run.
        epoch: Counted from 0.

    >>> views = draw_views(torch.arange(4), size=8, augment=("crop",), seed=0, epoch=0)
    >>> views.rows.shape, int(views.rows.max()) < 8 + 2 * margin(8, ("crop",))
    (torch.Size([4, 8]), True)
    """
    line = torch.arange(size, device=index.device)
    top = left = torch.zeros_like(index)
    if "crop" in augment:
        num_offsets = 2 * margin(size, augment) + 1
        random = bits(key(seed, Purpose.CROP, epoch), index)
        top, left = below(random, num_offsets), below(random << 32, num_offsets)
    rows, columns = top[:, None] + line, left[:, None] + line
    if "flip" in augment:
        flipped = bits(key(seed, Purpose.FLIP, epoch), index) < 0  # the sign is a fair bit
        columns = torch.where(flipped[:, None], columns.flip(1), columns)
    return Views(rows, columns)


def look(images: Tensor, index: Tensor, views: Views, channels: Tensor) -> Tensor:
    """images[index] through `views`: (B, C, S, S) in one gather; `channels` is 0, …, C - 1, (C, 1, 1)."""
    rows, columns = views.rows[:, None, :, None], views.columns[:, None, None, :]
    return images[index[:, None, None, None], channels, rows, columns]


def channel_index(images: Tensor) -> Tensor:
    """The last argument of `look`."""
    return torch.arange(images.shape[1], device=images.device)[:, None, None]
