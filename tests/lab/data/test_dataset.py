"""What every data set promises: pure batches, whatever the rank, the start, and what else is in the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise.lab.data import Batch, DataConfig, Dataset, from_tensors, load_dataset

CONFIGS = {
    "digits": DataConfig("digits", augment=("flip", "crop"), num_train=40, num_test=21),
    "teacher": DataConfig("teacher", samples=40, tokens=3, dim=4, num_test=21),
    "synthetic_images": DataConfig("synthetic_images", augment=("crop",), num_train=40, num_test=21, image_size=8),
    "synthetic_text": DataConfig("synthetic_text", num_train=40, num_test=21, context=5),
}
DATASETS = {name: load_dataset(config) for name, config in CONFIGS.items()}


def rows_of(batches):
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


names = st.sampled_from(sorted(DATASETS))
seeds, epochs = st.integers(0, 2**62), st.integers(0, 100)


@given(names, seeds, epochs, st.sampled_from([1, 2, 3, 6]))
def test_ranks_together_are_one_process_bit_for_bit(name, seed, epoch, world_size):
    dataset = DATASETS[name]
    whole = list(dataset.train_batches(batch_size=12, seed=seed, epoch=epoch))
    ranks = [
        dataset.train_batches(batch_size=12, seed=seed, epoch=epoch, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for batch, *parts in zip(whole, *ranks, strict=True):
        assert same(batch, rows_of(parts))
    assert len(whole) == dataset.num_batches(12) == 3


@given(names, seeds, epochs, st.integers(0, 5))
def test_start_skips_and_changes_nothing(name, seed, epoch, start):
    whole = list(DATASETS[name].train_batches(batch_size=8, seed=seed, epoch=epoch))
    rest = list(DATASETS[name].train_batches(batch_size=8, seed=seed, epoch=epoch, start=start))
    assert len(rest) == len(whole) - start
    assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


@given(names, seeds, epochs, st.sampled_from([1, 4, 5, 20]))
def test_a_row_does_not_know_its_batch(name, seed, epoch, batch_size):
    dataset = DATASETS[name]
    one = rows_of(dataset.train_batches(batch_size=40, seed=seed, epoch=epoch))
    assert same(one, rows_of(dataset.train_batches(batch_size=batch_size, seed=seed, epoch=epoch)))


@given(names, st.integers(1, 25), st.integers(1, 4))
def test_testing_drops_nothing(name, batch_size, world_size):
    dataset = DATASETS[name]
    whole = rows_of(dataset.test_batches(batch_size=21))
    assert len(whole[0]) == dataset.num_test == 21
    assert same(whole, rows_of(dataset.test_batches(batch_size=batch_size)))
    parts = [
        batch
        for rank in range(world_size)
        for batch in dataset.test_batches(batch_size=batch_size, rank=rank, world_size=world_size)
    ]
    assert sum(len(batch.targets) for batch in parts) == 21


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_shapes_types_and_sizes(name):
    dataset = DATASETS[name]
    assert isinstance(dataset, Dataset)
    batch = next(dataset.train_batches(batch_size=8, seed=0, epoch=0))
    assert isinstance(batch, Batch)
    assert batch.inputs.shape == (8, *dataset.input_shape)
    assert batch.inputs.is_contiguous()
    assert dataset.num_train == 40
    if dataset.task == "regress":
        assert (dataset.num_classes, batch.inputs.dtype, batch.targets.shape) == (0, torch.float32, batch.inputs.shape)
    else:
        assert batch.targets.dtype == torch.int64
        assert 0 <= int(batch.targets.min()) <= int(batch.targets.max()) < dataset.num_classes
    assert bool(torch.isfinite(batch.inputs).all())


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_epochs_differ_and_the_global_generator_stays(name):
    before = torch.random.get_rng_state()
    dataset = load_dataset(CONFIGS[name])
    first, second = (next(dataset.train_batches(batch_size=8, seed=0, epoch=epoch)) for epoch in (0, 1))
    assert not torch.equal(first.inputs, second.inputs)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_moving_gives_the_same_batches(name):
    moved = DATASETS[name].to("cpu")
    assert type(moved) is type(DATASETS[name])
    arguments = {"batch_size": 8, "seed": 0, "epoch": 0}
    assert same(rows_of(moved.train_batches(**arguments)), rows_of(DATASETS[name].train_batches(**arguments)))
    assert moved.to("meta").input_shape == moved.input_shape


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(DATASETS))
def test_same_on_the_gpu(name):
    arguments = {"batch_size": 8, "seed": 3, "epoch": 2}
    on_gpu = rows_of(DATASETS[name].to("cuda").train_batches(**arguments))
    assert same([x.cpu() for x in on_gpu], rows_of(DATASETS[name].train_batches(**arguments)))


@settings(max_examples=20)
@given(st.integers(-5, 60), st.integers(-3, 3))
def test_arguments_are_checked_before_the_first_batch(batch_size, start):
    if 1 <= batch_size <= 40 and start >= 0:
        return
    with pytest.raises(ValueError, match="must be at"):
        DATASETS["teacher"].train_batches(batch_size=batch_size, seed=0, epoch=0, start=start)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_fingerprint_is_of_the_data_alone(name):
    first = DATASETS[name].fingerprint()
    assert first == load_dataset(CONFIGS[name]).fingerprint()
    assert len(first) == 12  # three moments of inputs and targets of both splits


def test_fingerprints_differ_with_the_data():
    labels = torch.arange(40) % 4
    inputs = torch.arange(120.0).reshape(40, 3)
    swapped = inputs.flip(1)  # the same moments but for the order
    data = [
        from_tensors(train, test, task="classify")
        for train, test in [
            ((inputs, labels), (inputs, labels)),
            ((swapped, labels), (inputs, labels)),
            ((inputs, labels), (swapped, labels)),
            ((inputs, labels.flip(0)), (inputs, labels)),
        ]
    ]
    assert len({d.fingerprint() for d in data}) == 4
