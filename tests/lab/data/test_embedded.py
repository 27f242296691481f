"""Digits and the teacher task, without a file."""

import builtins

import pytest
import torch

from rankrise.lab.data import DataConfig, load_dataset
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
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"pip install rankrise\[demo\]"):
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
