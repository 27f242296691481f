"""From a `DataConfig` to a `Dataset`."""

from collections.abc import Callable
from pathlib import Path

from rankrise.data._config import DataConfig
from rankrise.data._dataset import Dataset
from rankrise.data._embedded import digits, teacher
from rankrise.data._synthetic import synthetic_images, synthetic_text

_MADE: dict[str, Callable[[DataConfig], Dataset]] = {
    "digits": digits,
    "teacher": teacher,
    "synthetic_images": synthetic_images,
    "synthetic_text": synthetic_text,
}


def load_dataset(config: DataConfig, *, root: Path | str | None = None) -> Dataset:
    """Read or make a data set, on the CPU; `.to(device)` takes it elsewhere.

    >>> dataset = load_dataset(DataConfig("synthetic_images", num_train=64))
    >>> batch = next(dataset.train_batches(batch_size=16, seed=0, epoch=0))
    >>> batch.inputs.shape, batch.targets.shape
    (torch.Size([16, 3, 32, 32]), torch.Size([16]))
    """
    if config.name in _MADE:
        return _MADE[config.name](config)
    raise NotImplementedError(f"{config.name!r} is not read yet.")
