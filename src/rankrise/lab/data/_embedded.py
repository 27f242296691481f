"""Data that needs no files: scikit-learn's digits and the paper's teacher task."""

import torch

from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._find import NO_DIGITS
from rankrise.lab.data._memory import Images, Pairs
from rankrise.lab.data._mix import Purpose, key
from rankrise.lab.data._normalise import DIGITS
from rankrise.lab.data._order import epoch_order
from rankrise.lab.data._subset import select
from rankrise.theory import attention_head, teacher_task

_TEST_DIGITS = 360  # a fifth of 1,797


def digits(config: DataConfig) -> Images:
    """1,797 handwritten digits, 8 × 8, one channel with 17 greys; the same 360 are the test set whatever the seed.

    Raises:
        ModuleNotFoundError: scikit-learn, which brings them, is missing.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_DIGITS) from error
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
    """`theory.teacher_task` in float32 for training; fresh tokens through the same teacher for testing."""
    shape = (config.tokens or 10, config.dim or 50)
    samples = config.samples or 1000
    x, y, q = teacher_task(samples=samples, tokens=shape[0], dim=shape[1], seed=config.seed)
    generator = torch.Generator().manual_seed(key(config.seed, Purpose.TEST) >> 1)
    x_test = torch.randn(config.num_test or -(-samples // 5), *shape, generator=generator, dtype=torch.float64)
    y_test = attention_head(x, y).h(x_test, q)
    return Pairs((x.float(), y.float()), (x_test.float(), y_test.float()))
