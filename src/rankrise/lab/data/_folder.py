"""Image folders, `train/<class>/*` and `val/<class>/*`: in memory when small, streamed by workers when large."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._dataset import Dataset
from rankrise.lab.data._find import find_splits
from rankrise.lab.data._images import decode
from rankrise.lab.data._memory import Images
from rankrise.lab.data._normalise import IMAGENET
from rankrise.lab.data._stream import StreamedImages
from rankrise.lab.data._subset import choose, random_labels

_SUFFIXES = (".jpg", ".jpeg", ".png")
_SIZE = 64


class Files(NamedTuple):
    """Image files of a split and their labels; the paths are fixed-width bytes, which workers share at no cost."""

    paths: NDArray[np.bytes_]
    labels: Tensor

    def take(self, chosen: Tensor) -> "Files":
        """The chosen ones."""
        return Files(self.paths[chosen.numpy()], self.labels[chosen])


def image_folder(config: DataConfig, root: Path | str | None, *, workers: int | None, memory: int) -> Dataset:
    """Read a folder of images: decoded here if they take at most `memory` bytes, else while training.

    Raises:
        FileNotFoundError: A folder is missing.
        ValueError: The classes of the splits differ, one is empty, a link leads out, or an image is broken.
    """
    folder = find_splits(config, root)
    size = config.image_size or _SIZE
    classes, train = _list_split(folder, "train")
    test_classes, test = _list_split(folder, "val")
    if classes != test_classes:
        only = [
            f"{', '.join(sorted(a - b)[:5])} only in {split}" for a, b, split in _differences(classes, test_classes)
        ]
        raise ValueError(f"train and val in {folder} must have the same classes; {' and '.join(only)}.")
    chosen = choose(train.labels, config.num_train, seed=config.seed, what="num_train")
    if config.random_labels:
        train = Files(train.paths, random_labels(len(train.labels), len(classes), seed=config.seed))
    train = train.take(chosen)
    test = test.take(choose(test.labels, config.num_test, seed=config.seed, what="num_test"))
    if (len(train.labels) + len(test.labels)) * 3 * size**2 > memory:
        return StreamedImages(
            train,
            test,
            size=size,
            num_classes=len(classes),
            normalisation=IMAGENET,
            augment=config.augment,
            workers=workers,
        )
    return Images(
        (_decode_all(train, size), train.labels),
        (_decode_all(test, size), test.labels),
        num_classes=len(classes),
        normalisation=IMAGENET,
        augment=config.augment,
    )


def _differences(train: list[str], test: list[str]) -> list[tuple[set[str], set[str], str]]:
    sides = [(set(train), set(test), "train"), (set(test), set(train), "val")]
    return [(a, b, split) for a, b, split in sides if a - b]


def _decode_all(files: Files, size: int) -> Tensor:
    images = torch.empty(len(files.labels), 3, size, size, dtype=torch.uint8)

    def place(i: int) -> None:
        images[i] = decode(Path(os.fsdecode(files.paths[i])), size)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # decoding lets go of the interpreter
        for _ in pool.map(place, range(len(images))):
            pass
    return images


def _list_split(folder: Path, split: str) -> tuple[list[str], Files]:
    """Classes by name and the files of each, both sorted."""
    place = folder / split
    base = os.path.realpath(folder)
    classes = sorted(entry.name for entry in _entries(place) if _is_dir(entry, base))
    if not classes:
        raise ValueError(f"{place} must hold a folder for each class; it holds none.")
    paths: list[bytes] = []
    counts = []
    for name in classes:
        found = sorted(os.fsencode(entry.path) for entry in _entries(place / name) if _is_image(entry, base))
        if not found:
            raise ValueError(f"{place / name} must hold at least one image ({', '.join(_SUFFIXES)}); it holds none.")
        paths += found
        counts.append(len(found))
    return classes, Files(np.array(paths), torch.arange(len(classes)).repeat_interleave(torch.tensor(counts)))


def _entries(place: Path) -> "list[os.DirEntry[str]]":
    with os.scandir(place) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _is_dir(entry: "os.DirEntry[str]", base: str) -> bool:
    return entry.is_dir() and _inside(entry, base)


def _is_image(entry: "os.DirEntry[str]", base: str) -> bool:
    return entry.name.lower().endswith(_SUFFIXES) and _inside(entry, base) and entry.is_file()


def _inside(entry: "os.DirEntry[str]", base: str) -> bool:
    """True, unless the entry is a link that leads out of the data set: then an error."""
    if entry.is_symlink() and os.path.commonpath([base, os.path.realpath(entry.path)]) != base:
        raise ValueError(f"{entry.path} must not be a link that leads out of {base}. Copy the files instead.")
    return True
