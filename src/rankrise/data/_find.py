"""Whether a data set is at hand, found out without reading it."""

from importlib.util import find_spec
from pathlib import Path

from rankrise.data._cifar import LAYOUTS
from rankrise.data._config import DataConfig
from rankrise.data._root import data_root, find_folder
from rankrise.data._text import PATTERNS, find_bpe


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
        raise ModuleNotFoundError(
            "The digits come with scikit-learn, which is not installed: pip install rankrise[demo]."
        )
    if config.name in LAYOUTS:
        layout = LAYOUTS[config.name]
        files = layout.train | layout.test
        return find_folder(config, root, *(pattern for name in files for pattern in (name, f"{name}.xz")))
    if config.name == "image_folder":
        return find_folder(config, root, "train")
    if config.name == "text":
        folder = find_folder(config, root, *(pattern.format("train") for pattern in PATTERNS))
        if config.tokenizer == "gpt2":
            find_bpe(folder, data_root(root))
        return folder
    return None
