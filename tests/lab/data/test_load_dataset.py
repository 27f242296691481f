"""Data that is made on the spot: digits, the teacher task, synthetic images and text."""

import importlib.util
import math

import pytest
import torch

from rankrise.lab.data import DataConfig, _load_dataset, load_dataset
from rankrise.theory import attention_head, teacher_task


def test_digits_are_split_once_and_for_all():
    one, two = (load_dataset(DataConfig("digits", seed=seed)) for seed in (0, 1))
    assert (one.num_train, one.num_test, one.input_shape, one.num_classes) == (1437, 360, (1, 8, 8), 10)
    test, other = (next(dataset.test_batches(batch_size=360)) for dataset in (one, two))
    assert torch.equal(test.inputs, other.inputs)
    train = next(one.train_batches(batch_size=1437, seed=0, epoch=0))
    assert abs(float(train.inputs.mean())) < 0.02
    assert abs(float(train.inputs.std()) - 1) < 0.02
    assert int(torch.bincount(test.targets).min()) >= 25


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rankrise\[demo\]'"):
        load_dataset(DataConfig("digits"))


def test_teacher_is_the_task_of_the_theory():
    dataset = load_dataset(DataConfig("teacher", samples=12, tokens=3, dim=4, seed=5))
    task = teacher_task(samples=12, tokens=3, dim=4, seed=5)
    batch = next(dataset.train_batches(batch_size=12, seed=0, epoch=0))
    assert sorted(batch.inputs.flatten().tolist()) == sorted(task.x.float().flatten().tolist())
    test = next(dataset.test_batches(batch_size=3))
    assert dataset.num_test == 3
    torch.testing.assert_close(test.targets, attention_head(task.x, task.y).h(test.inputs.double(), task.q).float())


def test_defaults_are_the_papers():
    dataset = load_dataset(DataConfig("teacher"))
    assert (dataset.num_train, dataset.num_test, dataset.input_shape, dataset.task) == (1000, 200, (10, 50), "regress")


def everything(dataset):
    batches = list(dataset.test_batches(batch_size=dataset.num_test))
    return batches[0]


def test_images_can_be_told_apart_by_their_template():
    dataset = load_dataset(DataConfig("synthetic_images", num_train=500, num_test=100))
    assert (dataset.input_shape, dataset.num_classes, dataset.num_train) == ((3, 32, 32), 10, 500)
    x, y = next(dataset.train_batches(batch_size=500, seed=0, epoch=0))
    means = torch.stack([x[y == c].mean(0).flatten() for c in range(10)])
    test = everything(dataset)
    assert torch.equal(torch.cdist(test.inputs.flatten(1), means).argmin(1), test.targets)
    assert torch.bincount(y).tolist() == [50] * 10


def test_more_images_begin_with_the_fewer(monkeypatch):
    few = load_dataset(DataConfig("synthetic_images", num_test=7, image_size=8))
    monkeypatch.setattr(_load_dataset, "_CHUNK", 3)
    more = load_dataset(DataConfig("synthetic_images", num_test=20, image_size=8))
    assert torch.equal(everything(few).inputs, everything(more).inputs[:7])


def test_images_of_another_size_and_number_of_classes():
    dataset = load_dataset(DataConfig("synthetic_images", num_train=30, num_test=9, image_size=12, num_classes=3))
    assert (dataset.input_shape, dataset.num_classes) == ((3, 12, 12), 3)


def test_seed_decides_and_random_labels_are_only_for_training():
    config = DataConfig("synthetic_images", num_train=30, num_test=9, image_size=8)
    one, two = everything(load_dataset(config)), everything(load_dataset(DataConfig(**vars(config) | {"seed": 1})))
    assert not torch.equal(one.inputs, two.inputs)
    mixed = load_dataset(DataConfig(**vars(config) | {"random_labels": True}))
    assert torch.equal(everything(mixed).targets, one.targets)
    arguments = {"batch_size": 30, "seed": 0, "epoch": 0}
    right, wrong = next(load_dataset(config).train_batches(**arguments)), next(mixed.train_batches(**arguments))
    assert torch.equal(right.inputs, wrong.inputs)
    assert not torch.equal(right.targets, wrong.targets)


def test_entropy_of_the_text_is_seven_quarters_of_a_bit():
    dataset = load_dataset(DataConfig("synthetic_text", num_train=400, num_test=400))
    counts = torch.zeros(64, 64)
    x, y = next(dataset.train_batches(batch_size=400, seed=0, epoch=0))
    counts.index_put_((x.flatten(), y.flatten()), torch.ones(x.numel()), accumulate=True)
    probability = counts / counts.sum(1, keepdim=True).clamp(min=1)
    x, y = everything(dataset)  # another walk through the same chain
    loss = -(probability[x.flatten(), y.flatten()] + 1e-12).log().mean()
    assert abs(float(loss) - 1.75 * math.log(2)) < 0.03


def test_smallest_vocabulary():
    dataset = load_dataset(DataConfig("synthetic_text", num_train=4, num_test=2, context=3, num_classes=2))
    assert set(everything(dataset).inputs.flatten().tolist()) <= {0, 1}
