"""From a `DataConfig` to a `Dataset`: data that needs no files is made here, other data is read.

Digits are scikit-learn's; the teacher task is the paper's. Synthetic images and text are made of integers, so that they
are the same bytes on every machine, with something to learn in them. Images: each class has a template of 8 × 8
squares; an image is its template, half as strong, plus uniform noise. Text: a Markov chain; after every token comes one
of four others, with odds 4 : 2 : 1 : 1, so that no model of it has a loss below 1.75 bits = 1.213 nats per token.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from rankrise._arguments import as_count
from rankrise._extras import require
from rankrise.lab.data._cifar_files import cifar
from rankrise.lab.data._data_config import DataConfig
from rankrise.lab.data._dataset import Dataset, epoch_order
from rankrise.lab.data._memory import CENTRED, DIGITS, Images, Pairs, Tokens
from rankrise.lab.data._mix import Purpose, below, bits, key, random_labels, select
from rankrise.lab.data._text_files import text
from rankrise.theory import attention_head, teacher_task

_TEST_DIGITS = 360  # a fifth of 1,797


def digits(config: DataConfig) -> Images:
    """Return 1,797 handwritten digits, 8 × 8, one channel with 17 greys; the same 360 are the test set for every seed.

    Raises:
        ModuleNotFoundError: If scikit-learn, which contains the digits, is missing.
    """
    require("Loading the digits", "sklearn")
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    order = epoch_order(0, 0, len(labels))
    held_out, kept = order[:_TEST_DIGITS], order[_TEST_DIGITS:]
    relabel = 10 if config.random_labels else None
    train = select((images[kept], labels[kept]), config.num_train, seed=config.seed, what="num_train", relabel=relabel)
    test = select((images[held_out], labels[held_out]), config.num_test, seed=config.seed, what="num_test")
    return Images(train, test, num_classes=10, normalisation=DIGITS, augment=config.augment)


def teacher(config: DataConfig) -> Pairs:
    """Return `theory.teacher_task` in float32 for training, and new tokens through the same teacher for testing."""
    shape = (config.tokens or 10, config.dim or 50)
    samples = config.samples or 1000
    x, y, q = teacher_task(samples=samples, tokens=shape[0], dim=shape[1], seed=config.seed)
    generator = torch.Generator().manual_seed(key(config.seed, Purpose.TEST) >> 1)
    x_test = torch.randn(config.num_test or -(-samples // 5), *shape, generator=generator, dtype=torch.float64)
    y_test = attention_head(x, y).h(x_test, q)
    return Pairs((x.float(), y.float()), (x_test.float(), y_test.float()))


_CELLS = 8  # squares along a side of a template
_NOISE = 96  # amplitude of the noise, where white is 255
_CHUNK = 500  # images drawn at once, because a pixel takes 8 bytes while it is drawn


def synthetic_images(config: DataConfig) -> Images:
    """Return images whose classes take turns: by default 10 classes and 2,000 + 400 images of 32 × 32."""
    num_classes = config.num_classes or 10
    size = config.image_size or 32
    train = _draw_images(config.num_train or 2000, num_classes, size, config.seed, Purpose.NOISE)
    test = _draw_images(config.num_test or 400, num_classes, size, config.seed, Purpose.TEST)
    if config.random_labels:
        train = train[0], random_labels(len(train[1]), num_classes, seed=config.seed)
    return Images(train, test, num_classes=num_classes, normalisation=CENTRED, augment=config.augment)


def _draw_images(num: int, num_classes: int, size: int, seed: int, purpose: Purpose) -> tuple[Tensor, Tensor]:
    labels = torch.arange(num) % num_classes
    shape = (num_classes, 3, _CELLS, _CELLS)
    cells = bits(key(seed, Purpose.TEMPLATES), torch.arange(num_classes * 3 * _CELLS**2)).view(shape)
    line = torch.arange(size) * _CELLS // size
    templates = (64 + below(cells, 128)).to(torch.int16)[:, :, line][:, :, :, line]
    images = torch.empty(num, 3, size, size, dtype=torch.uint8)
    pixels = images[0].numel()
    for begin in range(0, num, _CHUNK):
        part = images[begin : begin + _CHUNK]
        place = torch.arange(begin * pixels, begin * pixels + part.numel()).view(part.shape)
        noise = (below(bits(key(seed, purpose), place), 2 * _NOISE + 1) - _NOISE).to(torch.int16)
        part.copy_((templates[labels[begin : begin + _CHUNK]] + noise).clamp_(0, 255))
    return images, labels


def synthetic_text(config: DataConfig) -> Tokens:
    """Return a walk of the Markov chain: by default a vocabulary of 64 and 512 + 64 blocks of 64 tokens."""
    vocab_size = config.num_classes or 64
    context = config.context or 64
    train = _walk((config.num_train or 512) * context + 1, vocab_size, config.seed, Purpose.WALK)
    test = _walk((config.num_test or 64) * context + 1, vocab_size, config.seed, Purpose.TEST)
    return Tokens(train, test, context=context, vocab_size=vocab_size)


def _walk(length: int, vocab_size: int, seed: int, purpose: Purpose) -> Tensor:
    """Return the tokens of a walk; the seed determines the chain, and the purpose determines the walk through it."""
    chain = bits(key(seed, Purpose.CHAIN), torch.arange(vocab_size**2)).view(vocab_size, vocab_size)
    successors = chain.argsort(dim=1)[:, :4].tolist()
    turn = (0, 0, 0, 0, 1, 1, 2, 3) if vocab_size >= 4 else (0, 0, 0, 0, 1, 1, 1, 1)
    tokens = [0]
    for die in below(bits(key(seed, purpose), torch.arange(length - 1)), 8).tolist():
        tokens.append(successors[tokens[-1]][turn[die]])
    return torch.tensor(tokens, dtype=torch.int32)


_MADE: dict[str, Callable[[DataConfig], Dataset]] = {
    "digits": digits,
    "teacher": teacher,
    "synthetic_images": synthetic_images,
    "synthetic_text": synthetic_text,
}
_READ: dict[str, Callable[[DataConfig, Path | str | None], Dataset]] = {
    "cifar10": cifar,
    "cifar100": cifar,
    "text": text,
}


def load_dataset(
    config: DataConfig,
    *,
    root: Path | str | None = None,
    workers: int | None = None,
    memory: int = 2 * 2**30,
) -> Dataset:
    """Read or make a data set on the CPU; `.to(device)` moves it to another device.

    Args:
        config: The data set.
        root: The data folder; if None, what the variable `RANKRISE_DATA` says, else `data`.
        workers: Processes that decode the images of a folder too large for memory; if None, one per core, at most 8;
            0 decodes in this process. The number changes no batch.
        memory: Bytes that a folder's decoded images may take before they are streamed. The number changes no batch.

    Raises:
        FileNotFoundError: If the data set is not there; the message says where it was looked for, what the layout
            is and how to get it.
        ModuleNotFoundError: If a package that the data set needs is not installed.
        ValueError: If a file is not what it should be; the message names the file.

    >>> dataset = load_dataset(DataConfig("synthetic_images", num_train=64))
    >>> batch = next(dataset.train_batches(batch_size=16, seed=0, epoch=0))
    >>> batch.inputs.shape, batch.targets.shape
    (torch.Size([16, 3, 32, 32]), torch.Size([16]))
    """
    workers = None if workers is None else as_count(workers, "workers")
    if config.name in _MADE:
        return _MADE[config.name](config)
    if config.name in _READ:
        return _READ[config.name](config, root)
    require("Reading image files", "PIL")
    from rankrise.lab.data._image_files import image_folder

    return image_folder(config, root, workers=workers, memory=as_count(memory, "memory"))
