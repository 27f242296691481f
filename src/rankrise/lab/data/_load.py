"""From a `DataConfig` to a `Dataset`."""

from collections.abc import Callable
from pathlib import Path

from rankrise._arguments import as_count
from rankrise.lab.data._cifar import cifar
from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._dataset import Dataset
from rankrise.lab.data._embedded import digits, teacher
from rankrise.lab.data._folder import image_folder
from rankrise.lab.data._synthetic import synthetic_images, synthetic_text
from rankrise.lab.data._text import text

_MADE: dict[str, Callable[[DataConfig], Dataset]] = {
    "digits": digits,
    "teacher": teacher,
    "synthetic_images": synthetic_images,
    "synthetic_text": synthetic_text,
}
_READ: dict[str, Callable[[DataConfig, Path | str | None], Dataset]] = {
    "cifar10": cifar,
    "cifar100": cifar,
    "text": text,
}


def load_dataset(
    config: DataConfig,
    *,
    root: Path | str | None = None,
    workers: int | None = None,
    memory: int = 2 * 2**30,
) -> Dataset:
    """Read or make a data set, on the CPU; `.to(device)` takes it elsewhere.

    Args:
        config: Which.
        root: The data folder; what the variable `RANKRISE_DATA` says unless given, else `data` here.
        workers: Processes that decode images of a folder too large for memory; one per core, at most 8, unless given;
            0 decodes in this process. Changes no batch.
        memory: Bytes that a folder's decoded images may take before they are streamed. Changes no batch.

    Raises:
        FileNotFoundError: It is not there; says where it was looked for, what the layout is and how to get it.
        ValueError: A file is not what it should be; names it.

    >>> dataset = load_dataset(DataConfig("synthetic_images", num_train=64))
    >>> batch = next(dataset.train_batches(batch_size=16, seed=0, epoch=0))
    >>> batch.inputs.shape, batch.targets.shape
    (torch.Size([16, 3, 32, 32]), torch.Size([16]))
    """
    workers = None if workers is None else as_count(workers, "workers")
    if config.name in _MADE:
        return _MADE[config.name](config)
    if config.name in _READ:
        return _READ[config.name](config, root)
    return image_folder(config, root, workers=workers, memory=as_count(memory, "memory"))
