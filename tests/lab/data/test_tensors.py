"""A user's own tensors as a data set."""

import pytest
import torch

from rankrise.lab.data import Dataset, epoch_order, from_tensors

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
