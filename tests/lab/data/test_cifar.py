"""The official layout, plain and compressed, whole and in part; what is wrong with a file is said with its name."""

import hashlib
import lzma
import os
import pickle
import warnings

import numpy as np
import pytest
import torch
from tests.lab.data.test_unpickle import Hostile
from tests.lab.data.writers import CIFAR10_FILES, cifar_record, write_cifar10, write_pickle

from rankrise.lab.data import DataConfig, DataWarning, _cifar, load_dataset

pytestmark = pytest.mark.filterwarnings("ignore::rankrise.lab.data.DataWarning")


def load(root, name="cifar10", **settings):
    return load_dataset(DataConfig(name, **settings), root=root)


def test_files_are_read_in_order(tmp_path):
    write_cifar10(tmp_path)
    dataset = load(tmp_path)
    assert (dataset.num_train, dataset.num_test, dataset.input_shape, dataset.num_classes) == (40, 8, (3, 32, 32), 10)
    record = cifar_record(8, seed=5)
    batch = next(dataset.test_batches(batch_size=8))
    assert batch.targets.tolist() == record[b"labels"]
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    planes = torch.from_numpy(record[b"data"]).view(8, 3, 32, 32) / 255
    torch.testing.assert_close(batch.inputs, (planes - mean[:, None, None]) / std[:, None, None])


def test_compressed_and_plain_give_the_same(tmp_path):
    write_cifar10(tmp_path / "a")
    write_cifar10(tmp_path / "b", xz=("data_batch_2", "test_batch"))
    assert (tmp_path / "b/cifar-10-batches-py/test_batch.xz").is_file()
    batches = [next(load(tmp_path / x).train_batches(batch_size=40, seed=0, epoch=0)) for x in "ab"]
    assert torch.equal(batches[0].inputs, batches[1].inputs)


def test_folder_itself_may_be_the_root_or_have_another_name(tmp_path):
    place = write_cifar10(tmp_path, folder="mine")
    assert load(place).num_train == 40
    assert load(tmp_path, path="mine").num_train == 40


def test_every_file_that_is_not_official_is_named(tmp_path):
    write_cifar10(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(tmp_path)
    assert [w.category for w in caught] == [DataWarning] * 6
    for warning, name in zip(caught, CIFAR10_FILES, strict=True):
        assert f"{name} is not the official file: its md5 differs" in str(warning.message)


def test_official_files_are_not_mentioned(tmp_path, monkeypatch):
    place = write_cifar10(tmp_path, xz=("test_batch",))
    content = {name: (place / name).read_bytes() for name in CIFAR10_FILES[:5]}
    content["test_batch"] = lzma.decompress((place / "test_batch.xz").read_bytes())
    sums = {name: hashlib.md5(value).hexdigest() for name, value in content.items()}
    layout = _cifar.LAYOUTS["cifar10"]
    official = type(layout)(
        {n: sums[n] for n in layout.train}, {n: sums[n] for n in layout.test}, "labels", 10, layout.normalisation
    )
    monkeypatch.setitem(_cifar.LAYOUTS, "cifar10", official)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path)


def test_cifar100_with_fewer_images(tmp_path):
    place = tmp_path / "cifar-100-python"
    place.mkdir()
    for name, num in (("train", 20), ("test", 7)):
        write_pickle(place / name, cifar_record(num, num_classes=100, labels="fine_labels"), xz=True)
    dataset = load(tmp_path, "cifar100")
    assert (dataset.num_train, dataset.num_test, dataset.num_classes) == (20, 7, 100)


def test_subset_and_random_labels(tmp_path):
    write_cifar10(tmp_path)
    dataset = load(tmp_path, num_train=10, num_test=3, random_labels=True, augment=("flip",))
    assert (dataset.num_train, dataset.num_test) == (10, 3)
    with pytest.raises(ValueError, match="`num_train` must be at most the 40 samples there are; got 41"):
        load(tmp_path, num_train=41)


@pytest.mark.parametrize("xz", [False, True])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_truncated_file_is_named(tmp_path, xz, kept):
    place = write_cifar10(tmp_path, xz=("data_batch_3",) if xz else ())
    path = place / ("data_batch_3.xz" if xz else "data_batch_3")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=rf"{path.name} must be a whole .* truncated.*Get it again"):
        load(tmp_path)


def test_damaged_and_oversized_xz_are_named(tmp_path, monkeypatch):
    place = write_cifar10(tmp_path, xz=("data_batch_1",))
    path = place / "data_batch_1.xz"
    monkeypatch.setattr(_cifar, "_LARGEST", 1000)
    with pytest.raises(ValueError, match=r"data_batch_1.xz must hold at most 1000 bytes; it holds more"):
        load(tmp_path)
    monkeypatch.undo()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"data_batch_1.xz must be .*damaged"):
        load(tmp_path)
    path.write_bytes(b"not xz at all")
    with pytest.raises(ValueError, match=r"data_batch_1.xz must be an .xz file; it is damaged"):
        load(tmp_path)


def test_streams_one_after_another_are_one_file(tmp_path):
    place = write_cifar10(tmp_path)
    path = place / "test_batch"
    content = path.read_bytes()
    path.unlink()
    (place / "test_batch.xz").write_bytes(lzma.compress(content[:999]) + lzma.compress(content[999:]))
    assert load(tmp_path).num_test == 8


def test_missing_file_is_named(tmp_path):
    (write_cifar10(tmp_path) / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"^data_batch_4 is missing\. .*--data DIR"):
        load(tmp_path)


GOOD = cifar_record(4)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([1, 2], "must hold a dictionary; it holds list"),
        ({}, r"`data` in .*test_batch must be uint8 of shape \(n, 3072\); got NoneType"),
        (GOOD | {b"data": np.zeros((4, 3071), np.uint8)}, r"must be uint8 of shape.*got uint8 \(4, 3071\)"),
        (GOOD | {b"data": np.zeros((4, 3, 32, 32), np.uint8)}, r"got uint8 \(4, 3, 32, 32\)"),
        (GOOD | {b"data": np.zeros((4, 3072), np.int64)}, r"got int64 \(4, 3072\)"),
        (GOOD | {b"data": np.zeros((0, 3072), np.uint8)}, "must hold at least one image; it holds none"),
        (GOOD | {b"labels": [1, 2, 3]}, r"`labels` in .*test_batch must be a list of 4 integers; got 3 entries"),
        (GOOD | {b"labels": [1, 2, 3, 4.0]}, "must be a list of 4 integers"),
        (GOOD | {b"labels": [1, 2, 3, True]}, "must be a list of 4 integers"),
        (GOOD | {b"labels": None}, "must be a list of 4 integers; got none. Get the official file"),
        (GOOD | {b"labels": [1, 2, 3, 10]}, r"`labels` in .*test_batch must be from 0 to 9; got 10"),
        (GOOD | {b"labels": [1, 2, -1, 3]}, "must be from 0 to 9; got -1"),
    ],
)
def test_wrong_contents_are_named(tmp_path, record, message):
    write_pickle(write_cifar10(tmp_path) / "test_batch", record)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_pickle_that_runs_a_program_does_not(tmp_path):
    path = write_cifar10(tmp_path) / "data_batch_2"
    path.write_bytes(pickle.dumps(GOOD | {"x": Hostile(os.system, f"touch {tmp_path}/pwned")}))
    with pytest.raises(ValueError, match=r"data_batch_2 must hold nothing but.*asks for (posix|nt)\.system"):
        load(tmp_path)
    assert not (tmp_path / "pwned").exists()
