"""Image folders, `train/<class>/*` and `val/<class>/*`: in memory when small, streamed by workers when large.

Workers only decode. What a batch holds is decided by `epoch_order` before they start, and its augmentation is drawn on
the device afterwards, so the number of workers changes nothing but the speed.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from rankrise.lab.data._data_config import DataConfig
from rankrise.lab.data._dataset import Batch, Dataset, Span
from rankrise.lab.data._locate import find_splits
from rankrise.lab.data._memory import (
    IMAGENET,
    Images,
    Normalisation,
    channel_index,
    draw_views,
    look,
    normalise,
    with_margin,
)
from rankrise.lab.data._mix import choose, random_labels

_FORMATS = ("JPEG", "PNG")  # by content: ImageNet has a PNG called .JPEG


def decode(path: Path, size: int) -> Tensor:
    """Return the image in `path` as uint8, (3, size, size).

    The shorter side becomes `size`, and the longer side is cut evenly at both ends; the resampling is bilinear with
    anti-aliasing. JPEGs much larger than needed are decoded at a fraction of their size. Greyscale, palette, CMYK and
    transparent images become RGB.

    Raises:
        ValueError: If the image cannot be decoded; the message names the file.
    """
    try:
        with Image.open(path, formats=_FORMATS) as image:
            image.draft(None, (size, size))
            width, height = image.size
            side = min(width, height)
            left, top = (width - side) / 2, (height - side) / 2
            pixels = _rgb(image).resize(
                (size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
            )
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{path} must be a JPEG or PNG image; it is broken ({error}). Get it again, or remove it."
        ) from error
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous()


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "P":  # a palette may be transparent: convert its colours first, then drop the transparency
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


class Files(NamedTuple):
    """Image files of a split and their labels; the paths are fixed-width bytes, which workers share at no cost."""

    paths: NDArray[np.bytes_]
    labels: Tensor

    def take(self, chosen: Tensor) -> "Files":
        """Return the chosen files."""
        return Files(self.paths[chosen.numpy()], self.labels[chosen])


class StreamedImages(Dataset):
    """Image files that are decoded while training; the batches equal those of `Images` bit for bit."""

    task = "classify"

    def __init__(
        self,
        train: Files,
        test: Files,
        *,
        size: int,
        num_classes: int,
        normalisation: Normalisation,
        augment: tuple[str, ...] = (),
        workers: int | None = None,
    ) -> None:
        self.num_train, self.num_test = len(train.labels), len(test.labels)
        self.input_shape = (3, size, size)
        self.num_classes = num_classes
        self._files, self._test_files = train, test
        self._normalisation, self._augment = normalisation, augment
        self._workers = min(8, num_cores()) if workers is None else workers
        self._place("cpu")

    def _place(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._shift, self._scale = self._normalisation.tables(device)

    def to(self, device: torch.device | str) -> Self:
        """Return the same data with batches on another device."""
        placed = copy(self)
        placed._place(device)
        return placed

    def _train(self, order: Tensor, spans: Iterator[Span], seed: int, epoch: int) -> Iterator[Batch]:
        rows = [order[begin:end] for begin, end in spans]
        for index, images, labels in self._decoded(self._files, rows):
            if self._augment:
                views = draw_views(index, size=images.shape[-1], augment=self._augment, seed=seed, epoch=epoch)
                padded = with_margin(images, self._augment)
                positions = torch.arange(len(images), device=images.device)
                images = look(padded, positions, views, channel_index(images))
            yield Batch(normalise(images, self._shift, self._scale), labels)

    def _test(self, spans: Iterator[Span]) -> Iterator[Batch]:
        rows = [torch.arange(begin, end) for begin, end in spans]
        for _, images, labels in self._decoded(self._test_files, rows):
            yield Batch(normalise(images, self._shift, self._scale), labels)

    def _decoded(self, files: Files, rows: list[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield samples, images and labels of each batch, on the device.

        Raises:
            ValueError: If an image is broken; the message names its file.
        """
        on_gpu = self._device.type == "cuda"
        loader: DataLoader[Any] = DataLoader(
            _Decoder(files, self.input_shape[-1]),
            batch_sampler=[index.tolist() for index in rows],
            num_workers=self._workers,
            prefetch_factor=4 if self._workers else None,
            collate_fn=_unchanged,
            pin_memory=on_gpu,
            generator=torch.Generator(),  # the workers' seed does not come from the global one
        )
        for index, images in zip(rows, loader, strict=True):
            if isinstance(images, str):
                raise ValueError(images)
            yield (
                index.to(self._device),
                images.to(self._device, non_blocking=True),
                files.labels[index].to(self._device),
            )


class _Decoder(TorchDataset[Any]):
    """The work of a worker; it returns a failure as its message, which the loader would hide in a traceback."""

    def __init__(self, files: Files, size: int) -> None:
        self._paths, self._size = files.paths, size

    def __getitems__(self, index: list[int]) -> Tensor | str:
        try:
            return torch.stack([decode(Path(os.fsdecode(self._paths[i])), self._size) for i in index])
        except ValueError as error:
            return str(error)


def _unchanged(batch: Any) -> Any:
    return batch


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_SUFFIXES = (".jpg", ".jpeg", ".png")
_SIZE = 64


def image_folder(config: DataConfig, root: Path | str | None, *, workers: int | None, memory: int) -> Dataset:
    """Read a folder of images; they are decoded here if they take at most `memory` bytes, else while training.

    Raises:
        FileNotFoundError: If a folder is missing.
        ValueError: If the classes of the splits differ, a class is empty, a link leads out of the folder, or an image
            is broken.
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

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # decoding releases the interpreter's lock
        for _ in pool.map(place, range(len(images))):
            pass
    return images


def _list_split(folder: Path, split: str) -> tuple[list[str], Files]:
    """Return the names of the classes and the files of each class, both sorted."""
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
    """Return True, or raise an error if the entry is a link that leads out of the data set."""
    if entry.is_symlink() and os.path.commonpath([base, os.path.realpath(entry.path)]) != base:
        raise ValueError(f"{entry.path} must not be a link that leads out of {base}. Copy the files instead.")
    return True
