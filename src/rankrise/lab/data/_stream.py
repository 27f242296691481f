"""Image sets too large for the device: decoded by workers ahead of time, augmented on the device.

Workers only decode. What a batch holds is decided by `epoch_order` before they start, and its augmentation is drawn on
the device afterwards, so the number of workers changes nothing but the speed.
"""

import os
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from rankrise.lab.data._augment import channel_index, draw_views, look, with_margin
from rankrise.lab.data._dataset import Batch, Dataset
from rankrise.lab.data._images import decode
from rankrise.lab.data._normalise import Normalisation, normalise
from rankrise.lab.data._order import Span

if TYPE_CHECKING:
    from rankrise.lab.data._folder import Files


class StreamedImages(Dataset):
    """Image files decoded on the way; batches as those of `Images`, bit for bit."""

    task = "classify"

    def __init__(
        self,
        train: "Files",
        test: "Files",
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
        """The same data with batches on another device."""
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

    def _decoded(self, files: "Files", rows: list[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Samples, images and labels of each batch, on the device.

        Raises:
            ValueError: An image is broken; names it.
        """
        on_gpu = self._device.type == "cuda"
        loader: DataLoader[Any] = DataLoader(
            _Decoder(files, self.input_shape[-1]),
            batch_sampler=[index.tolist() for index in rows],
            num_workers=self._workers,
            prefetch_factor=4 if self._workers else None,
            collate_fn=_unchanged,
            pin_memory=on_gpu,
            generator=torch.Generator(),  # the loader draws a seed for its workers: not from the global generator
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
    """What a worker does; a failure is returned as its message, for the loader would bury it in a traceback."""

    def __init__(self, files: "Files", size: int) -> None:
        self._paths, self._size = files.paths, size

    def __getitems__(self, index: list[int]) -> Tensor | str:
        try:
            return torch.stack([decode(Path(os.fsdecode(self._paths[i])), self._size) for i in index])
        except ValueError as error:
            return str(error)


def _unchanged(batch: Any) -> Any:
    return batch


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
