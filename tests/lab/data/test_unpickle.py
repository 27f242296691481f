"""Pickles that ask for anything but arrays are refused before they run; damaged ones are named."""

import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankrise.lab.data._unpickle import unpickle

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
