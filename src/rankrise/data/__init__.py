"""Data sets: batches on the device whose order and augmentation are pure functions of (seed, epoch, index)."""

from rankrise.data._config import DataConfig as DataConfig
from rankrise.data._dataset import Batch as Batch
from rankrise.data._dataset import Dataset as Dataset
from rankrise.data._find import find_dataset as find_dataset
from rankrise.data._library import LibraryText as LibraryText
from rankrise.data._library import library_files as library_files
from rankrise.data._library import load_library as load_library
from rankrise.data._library import split_of as split_of
from rankrise.data._load import load_dataset as load_dataset
from rankrise.data._order import epoch_order as epoch_order
from rankrise.data._tensors import from_tensors as from_tensors
from rankrise.data._warning import DataWarning as DataWarning
