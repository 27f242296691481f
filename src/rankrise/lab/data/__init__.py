"""Data sets: batches on the device whose order and augmentation are pure functions of (seed, epoch, index).

Which data, and whether its files are at hand, is known without PyTorch; what reads data is loaded on first use.
"""

from typing import TYPE_CHECKING

from rankrise._lazy import lazy_names as _lazy_names
from rankrise.lab.data._config import DataConfig as DataConfig
from rankrise.lab.data._find import find_dataset as find_dataset
from rankrise.lab.data._warning import DataWarning as DataWarning

if TYPE_CHECKING:
    from rankrise.lab.data._dataset import Batch as Batch
    from rankrise.lab.data._dataset import Dataset as Dataset
    from rankrise.lab.data._library import LibraryText as LibraryText
    from rankrise.lab.data._library import library_files as library_files
    from rankrise.lab.data._library import load_library as load_library
    from rankrise.lab.data._library import split_of as split_of
    from rankrise.lab.data._load import load_dataset as load_dataset
    from rankrise.lab.data._order import epoch_order as epoch_order
    from rankrise.lab.data._tensors import from_tensors as from_tensors

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "_dataset": ("Batch", "Dataset"),
        "_library": ("LibraryText", "library_files", "load_library", "split_of"),
        "_load": ("load_dataset",),
        "_order": ("epoch_order",),
        "_tensors": ("from_tensors",),
    },
)
