"""CIFAR from official files, plain or compressed; damaged files and hostile pickles are refused."""

import contextlib
import hashlib
import lzma
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.data.writers import CIFAR10_FILES, cifar_record, write_cifar10, write_pickle

from rankrise.lab.data import DataConfig, DataWarning, _cifar_files, load_dataset
from rankrise.lab.data._cifar_files import unpickle

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
    layout = _cifar_files.CIFAR_FILES["cifar10"]
    official = type(layout)({n: sums[n] for n in layout.train}, {n: sums[n] for n in layout.test}, "labels", 10)
    monkeypatch.setitem(_cifar_files.CIFAR_FILES, "cifar10", official)
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
    monkeypatch.setattr(_cifar_files, "_LARGEST", 1000)
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


def test_pipe_is_not_taken_for_a_file(tmp_path):
    path = write_cifar10(tmp_path) / "data_batch_4"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileNotFoundError, match=r"^data_batch_4 is missing"):
        load(tmp_path)


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


PATH = Path("data_batch_1")


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch pwned",), r"(posix|nt)\.system"),
        (eval, ("1",), "builtins.eval"),
        (getattr, ("", "join"), "builtins.getattr"),
        (np.load, ("x",), r"numpy.*load"),
    ],
)
def test_hostile_pickle_is_refused_and_does_not_run(function, arguments, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"data": Hostile(function, *arguments)})
    with pytest.raises(
        ValueError, match=rf"data_batch_1 must hold nothing but numpy arrays.*it asks for {name}, which"
    ):
        unpickle(content, PATH)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_every_protocol_are_read(protocol):
    record = {"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": [1, 2, 3], "batch_label": "one"}
    got = unpickle(pickle.dumps(record, protocol=protocol), PATH)
    assert np.array_equal(got["data"], record["data"])
    assert got["labels"] == [1, 2, 3]


def test_python_2_wrote_the_flags_of_a_type_as_integers():  # as in the official files
    content = b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb."
    assert unpickle(content, PATH) == np.uint8


def test_arrays_of_objects_are_refused():
    with pytest.raises(ValueError, match=r"data_batch_1 must be a whole pickle.*arrays of type 'O8' are not read"):
        unpickle(pickle.dumps(np.array([None, {}], dtype=object)), PATH)


@given(st.binary(max_size=200))
def test_noise_is_refused_or_harmless(content):
    with contextlib.suppress(ValueError):
        unpickle(content, PATH)


def test_ten_bytes_do_not_take_all_memory():
    assert unpickle(b"\x80\x02Nr\xff\xff\xff\xff.", PATH) is None  # into the last place of the memo
    with pytest.raises(ValueError, match="must be a whole pickle"):
        unpickle(b"\x80\x05\x8e" + b"\xff" * 7 + b"\x7f.", PATH)  # bytes of length 2⁶³


def test_other_codecs_are_refused():
    content = b"c_codecs\nencode\n(Vtext\nVrot13\ntR."
    with pytest.raises(ValueError, match="text in 'rot13' is not read"):
        unpickle(content, PATH)


@given(st.integers(0, 100_000))
def test_cut_off_pickle_is_named(length):
    content = pickle.dumps({"data": np.zeros((30, 100), dtype=np.uint8), "labels": [0] * 30}, protocol=2)
    with pytest.raises(ValueError, match=r"data_batch_1 must (be a whole pickle; it is truncated|hold nothing but)"):
        unpickle(content[: length % len(content)], PATH)
