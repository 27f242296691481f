"""Arrays of an `.npz` or `.npy` from a stranger are read as they are, or refused in one sentence before that."""

import os
import zipfile

import numpy as np
import pytest
from tests.trust.hostile import npy_head, npz

from rankrise.store import UntrustedInputError, read_npy, read_npz


def test_arrays_keep_their_types_and_get_the_order_of_this_machine(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.array([1, 2], ">f4"), y=np.array([True]))
    found = read_npz(tmp_path / "a.npz", argument="--data")
    assert {name: str(array.dtype) for name, array in found.items()} == {"x": "float32", "y": "bool"}
    assert found["x"].tolist() == [1, 2]
    assert list(read_npz(tmp_path / "a.npz", ["y"], argument="--data")) == ["y"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: npz(path, x=(npy_head((2**27,)), 2**20)), "x unpacks to 1073741824 bytes, more than 40000000"),
        (lambda path: npz(path, x=(npy_head((-1, -1)), 0)), "x has the shape"),
        (lambda path: np.savez(path, x=np.array([{}], dtype=object)), "x holds object, not real numbers"),
        (lambda path: np.savez(path, x=np.array(["a"])), "x holds <U1, not real numbers"),
        (lambda path: np.savez(path, x=np.array([1j])), "x holds complex128, not real numbers"),
        (lambda path: np.savez(path, y=np.ones(1)), "it holds no array x"),
        (lambda path: path.write_bytes(b"PK\3\4 nothing"), "File is not a zip file"),
        (lambda path: path.write_bytes(b""), "File is not a zip file"),
        (lambda path: path.write_bytes(npy_head((1,)) + bytes(8)), "it holds a single array"),
        (lambda path: os.mkfifo(path), "must be a regular file"),
        (lambda path: path.mkdir(), "must be a regular file"),
    ],
)
def test_anything_else_is_refused_in_a_sentence(tmp_path, make, reason):
    make(tmp_path / "a.npz")
    with pytest.raises(UntrustedInputError, match=reason) as error:
        read_npz(tmp_path / "a.npz", ["x"], argument="--data")
    assert str(error.value).endswith((".", ")."))


def test_another_compression_is_refused(tmp_path):
    """The errors of such a method are not those of numpy, and it unpacks small files to larger ones."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", npy_head((1,)) + bytes(8))
    with pytest.raises(UntrustedInputError, match="x is compressed as numpy never does"):
        read_npz(tmp_path / "a.npz", argument="--data")


def test_single_array_keeps_its_type_and_gets_the_order_of_this_machine(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1, 2]], ">f4"))
    found = read_npy(tmp_path / "a.npy", argument="data")
    assert (found.tolist(), str(found.dtype)) == ([[1, 2]], "float32")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_bytes(npy_head((2**27,)) + bytes(8)), "the array unpacks to 1073741824 bytes"),
        (lambda path: path.write_bytes(npy_head((4096,)) + bytes(8)), "the array has 32768 bytes, more than the file"),
        (lambda path: path.write_bytes(npy_head((3,)) + bytes(8)), "Failed to read all data for array"),
        (lambda path: path.write_bytes(npy_head((-1, -1))), "the array has the shape"),
        (lambda path: path.write_bytes(b"\x93NUMPY\2\0" + b"\xff\xff\xff\x7f{"), "EOF"),
        (lambda path: path.write_bytes(b"\x93NUMPY\3\0" + bytes(200)), "3, 0"),
        (lambda path: np.save(path, np.array([{}], dtype=object)), "the array holds object, not real numbers"),
        (lambda path: np.save(path, np.array([1j])), "the array holds complex128, not real numbers"),
        (lambda path: path.write_bytes(b"PK" + bytes(200)), "magic string"),
        (lambda path: path.write_bytes(b""), "EOF"),
        (lambda path: os.mkfifo(path), "must be a regular file"),
        (lambda path: path.mkdir(), "must be a regular file"),
    ],
)
def test_what_is_no_single_array_is_refused_in_a_sentence(tmp_path, make, reason):
    make(tmp_path / "a.npy")
    with pytest.raises(UntrustedInputError, match=reason) as error:
        read_npy(tmp_path / "a.npy", argument="data")
    assert str(error.value).endswith((".", ")."))
