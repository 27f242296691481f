"""Made data has the shapes asked for, the statistics promised, and is the same everywhere."""

import math

import torch

from rankrise.lab.data import DataConfig, _synthetic, load_dataset


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
    monkeypatch.setattr(_synthetic, "_CHUNK", 3)
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
