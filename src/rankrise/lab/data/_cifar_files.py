"""CIFAR-10 and CIFAR-100 from the official python batches, plain or compressed file by file.

A batch is a pickle. The reader of pickles here accepts nothing but dictionaries, lists, numbers, strings and numpy
arrays of integers, because a pickle can otherwise run any program.
"""

import hashlib
import io
import lzma
import os
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct
from numpy._core.numeric import _frombuffer  # type: ignore[attr-defined]
from torch import Tensor

from rankrise.lab.data._data_config import DataConfig, DataWarning
from rankrise.lab.data._locate import CIFAR_FILES, CifarFiles, find_cifar
from rankrise.lab.data._memory import CIFAR10, CIFAR100, Images
from rankrise.lab.data._mix import select
from rankrise.store import open_file

_PIXELS = 3 * 32 * 32  # numbers in a row: 32 × 32 red, then green, then blue
_LARGEST = 256 * 2**20  # bytes that a file may decompress to; the largest official file has 155 million
_MEMORY = 512 * 2**20  # bytes that the decompressor may use
_NORMALISATIONS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def cifar(config: DataConfig, root: Path | str | None) -> Images:
    """Read the set `config.name` from its folder.

    Raises:
        FileNotFoundError: If the folder or one of its files is missing.
        ValueError: If a file is truncated, damaged, or not what it should be; the message names the file.
    """
    layout = CIFAR_FILES[config.name]
    files = layout.train | layout.test
    paths = find_cifar(config, root)
    with ThreadPoolExecutor(
        min(len(paths), os.cpu_count() or 1)
    ) as pool:  # decompression releases the interpreter's lock
        parts = list(pool.map(lambda path, md5: _read(path, md5, layout), paths, files.values()))
    for path, part in zip(paths, parts, strict=True):
        if not part.official:
            message = f"{path} is not the official file: its md5 differs from the published one. It is used as it is."
            warnings.warn(message, DataWarning, stacklevel=2)
    num_train_files = len(layout.train)
    train, test = _join(parts[:num_train_files]), _join(parts[num_train_files:])
    relabel = layout.num_classes if config.random_labels else None
    return Images(
        select(train, config.num_train, seed=config.seed, what="num_train", relabel=relabel),
        select(test, config.num_test, seed=config.seed, what="num_test"),
        num_classes=layout.num_classes,
        normalisation=_NORMALISATIONS[config.name],
        augment=config.augment,
    )


@dataclass(frozen=True)
class _Part:
    images: Tensor  # (n, 3, 32, 32), uint8
    labels: Tensor  # (n,), int64
    official: bool


def _join(parts: list[_Part]) -> tuple[Tensor, Tensor]:
    return torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])


def _read(path: Path, md5: str, layout: CifarFiles) -> _Part:
    with open_file(path) as file:
        content = file.read()
    if path.suffix == ".xz":
        content = _decompress(content, path)
    official = hashlib.md5(content, usedforsecurity=False).hexdigest() == md5
    record = unpickle(content, path)
    if not isinstance(record, dict):
        raise ValueError(f"{path} must hold a dictionary; it holds {type(record).__name__}. Get the official file.")
    entries = {name.decode("latin1") if isinstance(name, bytes) else name: value for name, value in record.items()}
    images = _images(entries.get("data"), path)
    return _Part(images, _labels(entries.get(layout.labels), len(images), path, layout), official)


def _decompress(content: bytes, path: Path) -> bytes:
    """Decompress all streams of an .xz file within bounds of size and memory."""
    whole = bytearray()
    while content:
        stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY)
        try:
            whole += stream.decompress(content, max_length=_LARGEST - len(whole) + 1)
        except lzma.LZMAError as error:
            raise ValueError(f"{path} must be an .xz file; it is damaged ({error}). Get it again.") from error
        if len(whole) > _LARGEST:
            raise ValueError(f"{path} must hold at most {_LARGEST} bytes; it holds more. Get the official file.")
        if not stream.eof:
            raise ValueError(f"{path} must be a whole .xz file; it is truncated. Get it again.")
        content = stream.unused_data
    return bytes(whole)


def _images(data: Any, path: Path) -> Tensor:
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS:
        got = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"`data` in {path} must be uint8 of shape (n, {_PIXELS}); got {got}. Get the official file.")
    if len(data) == 0:
        raise ValueError(f"`data` in {path} must hold at least one image; it holds none. Get the official file.")
    return torch.from_numpy(np.array(data, order="C")).view(-1, 3, 32, 32)


def _labels(labels: Any, num: int, path: Path, layout: CifarFiles) -> Tensor:
    whole = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not whole or len(labels) != num:
        got = (
            f"{len(labels)} entries"
            if isinstance(labels, list)
            else "none"
            if labels is None
            else type(labels).__name__
        )
        raise ValueError(
            f"`{layout.labels}` in {path} must be a list of {num} integers; got {got}. Get the official file."
        )
    outside = [label for label in labels if not 0 <= label < layout.num_classes]
    if outside:
        rule = f"must be from 0 to {layout.num_classes - 1}"
        raise ValueError(f"`{layout.labels}` in {path} {rule}; got {outside[0]}. Get the official file.")
    return torch.tensor(labels, dtype=torch.int64)


def _dtype(spec: str | bytes, align: object = False, copy: object = False) -> "np.dtype[Any]":
    """Return a dtype of plain integers; Python 2 writes `align` and `copy` as 0 and 1, which mean nothing for these."""
    name = spec.decode("ascii") if isinstance(spec, bytes) else spec
    if name not in ("u1", "i1", "i4", "i8", "uint8", "int64"):
        raise pickle.UnpicklingError(f"arrays of type {name!r} are not read")
    return np.dtype(name)


def _encode(text: str, encoding: str) -> bytes:
    """Return bytes that Python 3 wrote as text, which is how it writes them for Python 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text in {encoding!r} is not read")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _encode,
}


class _Refused(Exception):
    """A global that is not allowed."""


# The unpickler written in C allocates 64 GB when ten bytes ask for the last place of its memo; this one does not.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _Refused(f"{module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a persistent object")


def unpickle(content: bytes, path: Path) -> Any:
    """Return the object in `content`, the bytes of the file `path`.

    Raises:
        ValueError: If the pickle asks for anything but numpy arrays, or is truncated or damaged; the message names the
            file.
    """
    if not content.endswith(pickle.STOP):
        raise ValueError(f"{path} must be a whole pickle; it is truncated. Get it again.")
    try:
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused as refused:
        raise ValueError(
            f"{path} must hold nothing but numpy arrays, lists and strings; it asks for {refused}, which is refused: "
            "a pickle can run any program. Do not trust this file; get the official one."
        ) from None
    except Exception as error:  # a damaged pickle can raise any exception
        raise ValueError(
            f"{path} must be a whole pickle; it is truncated or damaged ({error}). Get it again."
        ) from error
