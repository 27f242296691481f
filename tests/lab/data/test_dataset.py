"""Orders of an epoch are permutations; batches are the same whoever asks for them, on however many ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise.lab.data import Batch, DataConfig, Dataset, epoch_order, from_tensors, load_dataset
from rankrise.lab.data._dataset import held_out_spans, train_spans

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


@given(st.integers(0, 2**63 - 1), st.integers(0, 10_000), st.integers(0, 200))
def test_order_is_a_pure_permutation(seed, epoch, n):
    order = epoch_order(seed, epoch, n)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(n))
    assert torch.equal(order, epoch_order(seed, epoch, n))


def test_orders_differ_by_seed_and_epoch():
    orders = [tuple(epoch_order(seed, epoch, 50).tolist()) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9


def test_order_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    epoch_order(0, 0, 10)
    assert torch.equal(before, torch.random.get_rng_state())


def test_order_of_a_version_is_that_of_every_version():  # a run must resume in the order it began with
    assert epoch_order(7, 3, 8).tolist() == [6, 2, 3, 4, 7, 1, 5, 0]


def test_every_position_is_uniform():
    first = torch.bincount(torch.stack([epoch_order(0, epoch, 4) for epoch in range(4000)])[:, 0], minlength=4)
    assert bool((first - 1000).abs().max() < 120)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 5), st.integers(0, 8))
def test_ranks_together_are_one_process(n, share, world_size, start):
    batch_size = share * world_size
    if batch_size > n:
        return
    whole = list(train_spans(n, batch_size=batch_size, start=start, rank=0, world_size=1))
    ranks = [
        train_spans(n, batch_size=batch_size, start=start, rank=r, world_size=world_size) for r in range(world_size)
    ]
    for (begin, end), *parts in zip(whole, *ranks, strict=True):
        assert [i for part in parts for i in range(*part)] == list(range(begin, end))
    assert whole == [(i, i + batch_size) for i in range(start * batch_size, n - batch_size + 1, batch_size)]


@given(st.integers(0, 60), st.integers(1, 12), st.integers(1, 5))
def test_nothing_is_dropped_in_testing(n, batch_size, world_size):
    spans = [held_out_spans(n, batch_size=batch_size, rank=r, world_size=world_size) for r in range(world_size)]
    assert sorted(i for rank in spans for span in rank for i in range(*span)) == list(range(n))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 5, "world_size": 2}, "`batch_size` must be a multiple of `world_size`.*got 5 and 2"),
        ({"batch_size": 11}, "`batch_size` must be at most the 10 training samples there are; got 11"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"batch_size": 2.0}, "`batch_size` must be a whole number; got 2.0"),
        ({"batch_size": True}, "`batch_size` must be a whole number; got True"),
        ({"rank": 2, "world_size": 2}, "`rank` must be below `world_size`; got 2 of 2"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train_spans(10, **({"batch_size": 2, "start": 0, "rank": 0, "world_size": 1} | arguments))
