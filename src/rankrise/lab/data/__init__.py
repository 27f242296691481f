"""Data sets: batches on the device whose order and augmentation are pure functions of (seed, epoch, index).

`DataConfig` and `find_dataset` load no PyTorch; everything that reads data is imported on first use.
"""

from typing import TYPE_CHECKING

from rankrise._lazy import lazy_names as _lazy_names
from rankrise.lab.data._data_config import DataConfig as DataConfig
from rankrise.lab.data._data_config import DataWarning as DataWarning
from rankrise.lab.data._locate import find_dataset as find_dataset

if TYPE_CHECKING:
    from rankrise.lab.data._dataset import Batch as Batch
    from rankrise.lab.data._dataset import Dataset as Dataset
    from rankrise.lab.data._dataset import Task as Task
    from rankrise.lab.data._dataset import epoch_order as epoch_order
    from rankrise.lab.data._load_dataset import load_dataset as load_dataset
    from rankrise.lab.data._memory import from_tensors as from_tensors
    from rankrise.lab.data._text_files import LibraryText as LibraryText
    from rankrise.lab.data._text_files import library_files as library_files
    from rankrise.lab.data._text_files import load_library as load_library
    from rankrise.lab.data._text_files import split_of as split_of

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "_dataset": ("Batch", "Dataset", "Task", "epoch_order"),
        "_load_dataset": ("load_dataset",),
        "_memory": ("from_tensors",),
        "_text_files": ("LibraryText", "library_files", "load_library", "split_of"),
    },
)
