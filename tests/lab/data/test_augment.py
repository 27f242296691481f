"""The gather equals a loop over samples that pads, cuts and mirrors each with Python's integers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.data.test_mix import MASK, splitmix64

from rankrise.lab.data._augment import channel_index, draw_views, look, margin, with_margin
from rankrise.lab.data._mix import Purpose, key


def image_oracle(image, sample, augment, seed, epoch):
    """One image (C, S, S), slowly."""
    size = image.shape[-1]

    def random(purpose):
        return splitmix64((key(seed, purpose, epoch) + sample * 0x9E3779B97F4A7C15) & MASK)

    if "crop" in augment:
        width = size // 8
        padded = torch.zeros(image.shape[0], size + 2 * width, size + 2 * width, dtype=image.dtype)
        padded[:, width : width + size, width : width + size] = image
        word = random(Purpose.CROP)
        top, left = (word >> 32) * (2 * width + 1) >> 32, (word & 0xFFFFFFFF) * (2 * width + 1) >> 32
        image = padded[:, top : top + size, left : left + size]
    if "flip" in augment and random(Purpose.FLIP) >> 63:
        image = image.flip(-1)
    return image


def augmented(images, index, augment, seed, epoch):
    views = draw_views(index, size=images.shape[-1], augment=augment, seed=seed, epoch=epoch)
    return look(with_margin(images, augment), index, views, channel_index(images))


IMAGES = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
augments = st.sampled_from([("flip",), ("crop",), ("flip", "crop")])


@given(augments, st.integers(0, 2**63 - 1), st.integers(0, 1000), st.lists(st.integers(0, 11), min_size=1, max_size=12))
def test_batch_equals_the_loop_over_samples(augment, seed, epoch, index):
    batch = augmented(IMAGES, torch.tensor(index), augment, seed, epoch)
    assert torch.equal(batch, torch.stack([image_oracle(IMAGES[i], i, augment, seed, epoch) for i in index]))


def test_margin_is_black():
    batch = augmented(torch.full((200, 1, 8, 8), 9, dtype=torch.uint8), torch.arange(200), ("crop",), 0, 0)
    assert set(batch.unique().tolist()) == {0, 9}


def test_half_are_flipped_and_all_offsets_occur():
    columns = draw_views(torch.arange(9000), size=16, augment=("flip",), seed=0, epoch=0).columns
    assert abs(int((columns[:, 0] != 0).sum()) - 4500) < 200
    views = draw_views(torch.arange(9000), size=16, augment=("crop",), seed=0, epoch=0)
    offsets = torch.bincount(views.rows[:, 0] * 5 + views.columns[:, 0])  # 2 · 2 + 1 along each axis
    assert len(offsets) == 25
    assert bool((offsets - 360).abs().max() < 90)


def test_samples_and_epochs_are_independent():
    first, second = (draw_views(torch.arange(500), size=32, augment=("crop",), seed=0, epoch=e).rows for e in (0, 1))
    assert 20 < int((first[:, 0] == second[:, 0]).sum()) < 100  # a ninth agrees by chance


@pytest.mark.parametrize(("size", "width"), [(8, 1), (32, 4), (64, 8), (224, 28)])
def test_margin_grows_with_the_image(size, width):
    assert margin(size, ("crop",)) == width


@pytest.mark.gpu
def test_same_on_the_gpu():
    index = torch.arange(12)
    for augment in (("flip",), ("crop",), ("flip", "crop")):
        on_gpu = augmented(IMAGES.cuda(), index.cuda(), augment, 5, 3)
        assert torch.equal(on_gpu.cpu(), augmented(IMAGES, index, augment, 5, 3))
