"""Whether a data set is at hand, found out without reading it."""

from importlib.util import find_spec
from pathlib import Path

from rankrise.lab.data import _cifar as cifar
from rankrise.lab.data import _text as text
from rankrise.lab.data._cifar import LAYOUTS
from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._embedded import NO_DIGITS
from rankrise.lab.data._folder import find_splits
from rankrise.lab.data._root import data_root


def find_dataset(config: DataConfig, *, root: Path | str | None = None) -> Path | None:
    """Look for the files of a data set; what is wrong inside them is said by `load_dataset`.

    Args:
        config: Which.
        root: The data folder, as in `load_dataset`.

    Returns:
        Its folder; None of data that is made on the spot.

    Raises:
        FileNotFoundError: It is not there; says where it was looked for, what the layout is and how to get it.
        ModuleNotFoundError: A package that it needs is not installed.

    >>> find_dataset(DataConfig("teacher")) is None
    True
    """
    if config.name == "digits" and find_spec("sklearn") is None:
        raise ModuleNotFoundError(NO_DIGITS)
    if config.name in LAYOUTS:
        return cifar.find_files(config, root)[0].parent
    if config.name == "image_folder":
        return find_splits(config, root)
    if config.name == "text":
        folder, _ = text.find_files(config, root)
        if config.tokenizer == "gpt2":
            text.find_bpe(folder, data_root(root))
        return folder
    return None
