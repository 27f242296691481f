"""Augmentation against a plain oracle, normalisation, blocks of tokens, and a user's own tensors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.data.test_mix import MASK, splitmix64

from rankrise.lab.data import Dataset, _memory, epoch_order, from_tensors
from rankrise.lab.data._memory import Tokens, channel_index, draw_views, look, margin, normalise, with_margin
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


SETS = ["CIFAR10", "CIFAR100", "IMAGENET", "CENTRED"]
BYTES = torch.arange(256, dtype=torch.uint8).repeat(2, 3, 1).view(2, 3, 16, 16)


@pytest.mark.parametrize("name", SETS)
def test_equals_the_formula_in_float64(name):
    constants = getattr(_memory, name)
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (constants.mean, constants.std))
    expected = (BYTES.double() / 255 - mean) / std
    result = normalise(BYTES, *constants.tables("cpu"))
    assert result.dtype == torch.float32
    assert float((result - expected).abs().max()) < 1e-6


def test_digits_end_at_sixteen():
    result = normalise(torch.tensor([[[[0, 16]]]], dtype=torch.uint8), *_memory.DIGITS.tables("cpu"))
    expected = torch.tensor([[[[-0.3053 / 0.3760, (1 - 0.3053) / 0.3760]]]])
    torch.testing.assert_close(result, expected)


@pytest.mark.gpu
def test_normalised_bits_are_the_same_on_the_gpu():
    for name in SETS:
        constants = getattr(_memory, name)
        on_gpu = normalise(BYTES.cuda(), *constants.tables("cuda"))
        assert torch.equal(on_gpu.cpu(), normalise(BYTES, *constants.tables("cpu")))


def test_targets_are_the_next_tokens():
    text = torch.arange(22, dtype=torch.int32)
    dataset = Tokens(text, text[:9], context=4, vocab_size=30)
    assert (dataset.num_train, dataset.num_test) == (5, 2)
    inputs, targets = next(dataset.test_batches(batch_size=2))
    assert inputs.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert targets.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    seen = [row for batch in dataset.train_batches(batch_size=1, seed=0, epoch=0) for row in batch.inputs.tolist()]
    assert sorted(seen) == [list(range(i, i + 4)) for i in range(0, 20, 4)]


def test_block_needs_a_next_token():
    assert Tokens(torch.arange(8), torch.arange(9), context=4, vocab_size=9).num_train == 1
    assert Tokens(torch.arange(8), torch.arange(9), context=4, vocab_size=9).num_test == 2


X, LABELS = torch.arange(60.0).reshape(20, 3), torch.arange(20) % 4
TOKENS = torch.arange(40).reshape(10, 4)


def test_rows_come_in_the_order_of_the_epoch():
    data = from_tensors((X[:14], LABELS[:14]), (X[14:], LABELS[14:]), task="classify")
    assert isinstance(data, Dataset)
    assert (data.task, data.num_train, data.num_test, data.input_shape, data.num_classes) == (
        "classify",
        14,
        6,
        (3,),
        4,
    )
    first = next(data.to("cpu").train_batches(batch_size=4, seed=1, epoch=2))
    rows = epoch_order(1, 2, 14)[:4]
    assert torch.equal(first.inputs, X[rows])
    assert torch.equal(first.targets, LABELS[rows])
    assert torch.equal(torch.cat([b.targets for b in data.test_batches(batch_size=4)]), LABELS[14:])


def test_other_tasks():
    texts = from_tensors((TOKENS, TOKENS + 1), (TOKENS, TOKENS + 1), task="next_token", num_classes=64)
    assert (texts.task, texts.input_shape, texts.num_classes) == ("next_token", (4,), 64)
    vectors = from_tensors((X, X[:, :2]), (X, X[:, :2]), task="regress")
    assert (vectors.task, vectors.num_classes) == ("regress", 0)


GOOD = (X, LABELS)


@pytest.mark.parametrize(
    ("train", "test", "options", "message"),
    [
        (GOOD, GOOD, {"task": "clasify"}, r"`task` must be one of .*Did you mean 'classify'\?"),
        (X, GOOD, {}, r"`train` must be a pair of tensors \(inputs, targets\); got Tensor"),
        (GOOD, None, {}, r"`test` must be a pair of tensors \(inputs, targets\); got NoneType"),
        ((X.double(), LABELS), GOOD, {}, r"inputs of `train` must be torch.float32 for 'classify'; got torch.float64"),
        (GOOD, (X, LABELS.int()), {}, r"targets of `test` must be torch.int64 for 'classify'; got torch.int32"),
        ((X, LABELS[:3]), GOOD, {}, r"`train` must have as many inputs as targets, .*got \(20, 3\) and \(3,\)"),
        ((X[:0], LABELS[:0]), GOOD, {}, r"`train` must have as many inputs as targets, a row each and at least one"),
        ((X, LABELS[:, None]), GOOD, {}, r"targets of `train` must have shape \(n,\) for 'classify'; got \(20, 1\)"),
        (GOOD, (X[:, :2], LABELS), {}, r"must have one shape; got \(3,\) and \(2,\)"),
        (GOOD, GOOD, {"num_classes": 3}, r"Labels and tokens must be from 0 to 2; got 3"),
        (GOOD, (X, LABELS - 1), {}, r"Labels and tokens must be from 0 to 3; got -1"),
    ],
)
def test_refusals(train, test, options, message):
    with pytest.raises(ValueError, match=message):
        from_tensors(train, test, **{"task": "classify"} | options)
