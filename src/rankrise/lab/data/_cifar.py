"""CIFAR-10 and CIFAR-100 from the official python batches, plain or compressed file by file."""

import hashlib
import lzma
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._find import CIFAR_FILES, find_cifar
from rankrise.lab.data._memory import Images
from rankrise.lab.data._normalise import CIFAR10, CIFAR100, Normalisation
from rankrise.lab.data._subset import select
from rankrise.lab.data._unpickle import unpickle
from rankrise.lab.data._warning import DataWarning

_PIXELS = 3 * 32 * 32  # of a row: 32 × 32 red, then green, then blue
_LARGEST = 256 * 2**20  # decompressed bytes of a file; the largest official one has 155 million
_MEMORY = 512 * 2**20  # of the decompressor


@dataclass(frozen=True)
class _Layout:
    """The files of one of the two, with the md5 of their contents as published."""

    train: dict[str, str]
    test: dict[str, str]
    labels: str
    num_classes: int
    normalisation: Normalisation


LAYOUTS = {
    "cifar10": _Layout(
        train=CIFAR_FILES["cifar10"]["train"],
        test=CIFAR_FILES["cifar10"]["test"],
        labels="labels",
        num_classes=10,
        normalisation=CIFAR10,
    ),
    "cifar100": _Layout(
        train=CIFAR_FILES["cifar100"]["train"],
        test=CIFAR_FILES["cifar100"]["test"],
        labels="fine_labels",
        num_classes=100,
        normalisation=CIFAR100,
    ),
}


def cifar(config: DataConfig, root: Path | str | None) -> Images:
    """Read the set `config.name` from its folder.

    Raises:
        FileNotFoundError: The folder or a file of it is missing.
        ValueError: A file is truncated, damaged, or not what it should be; names it.
    """
    layout = LAYOUTS[config.name]
    files = layout.train | layout.test
    paths = find_cifar(config, root)
    with ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1)) as pool:  # decompression lets go of the interpreter
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
        normalisation=layout.normalisation,
        augment=config.augment,
    )


@dataclass(frozen=True)
class _Part:
    images: Tensor  # (n, 3, 32, 32), uint8
    labels: Tensor  # (n,), int64
    official: bool


def _join(parts: list[_Part]) -> tuple[Tensor, Tensor]:
    return torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])


def _read(path: Path, md5: str, layout: _Layout) -> _Part:
    content = path.read_bytes()
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
    """All streams of an .xz file, within bounds of size and memory."""
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


def _labels(labels: Any, num: int, path: Path, layout: _Layout) -> Tensor:
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
