"""Where data is looked for, and what to say when it is not there."""

import os
from pathlib import Path

from rankrise.lab.data._config import DataConfig

ENVIRONMENT = "RANKRISE_DATA"

# Default folder, layout and source of each data set that is read from files.
_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "image_folder": "", "text": "wikitext-2"}
_LAYOUTS = {
    "cifar10": (
        "data_batch_1 … data_batch_5 and test_batch, plain or each as .xz",
        "Download cifar-10-python.tar.gz from www.cs.toronto.edu/~kriz/cifar.html and unpack it there",
    ),
    "cifar100": (
        "train and test, plain or each as .xz",
        "Download cifar-100-python.tar.gz from www.cs.toronto.edu/~kriz/cifar.html and unpack it there",
    ),
    "image_folder": (
        "train/<class>/*.jpg and val/<class>/*.jpg (.jpg, .jpeg, .png)",
        "ImageNet is at image-net.org (ask for access), Tiny-ImageNet at cs231n.stanford.edu/tiny-imagenet-200.zip; "
        "sort their images into such folders",
    ),
    "text": (
        "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens (or .raw), or train.txt and test.txt, "
        "or train-*.parquet and test-*.parquet with a column `text`",
        "WikiText is on huggingface.co as Salesforce/wikitext",
    ),
}


def data_root(root: Path | str | None) -> Path:
    """The data folder: the argument, else what `RANKRISE_DATA` says, else `data` in the working directory."""
    return Path(root if root is not None else os.environ.get(ENVIRONMENT) or "data")


def find_folder(config: DataConfig, root: Path | str | None, *marks: str) -> Path:
    """The folder of a data set: the one with any of the files or folders `marks` in it (a pattern each).

    It is `path`, or the default of the name, below the data folder; or the data folder itself, with no `path` given or
    if it has the name that `path` ends in.

    Raises:
        FileNotFoundError: Says where it was looked for, what must be there, and how to get it.
    """
    base = data_root(root)
    default = _FOLDERS[config.name]
    wanted = base / (default if config.path is None else config.path)
    candidates = [wanted, base] if config.path is None or base.absolute().name == wanted.name else [wanted]
    for folder in candidates:
        if folder.is_dir() and any(next(folder.glob(mark), None) for mark in marks):
            return folder
    raise FileNotFoundError(missing(config, *dict.fromkeys(candidates)))


def missing(config: DataConfig, *places: Path) -> str:
    """One message: where it was looked for, what the layout is, how to get it."""
    name = config.name
    layout, source = _LAYOUTS[name]
    inner = config.path or _FOLDERS[name]
    return (
        f"The data set {name!r} must be in {' or '.join(str(place.absolute()) for place in places)}, which must hold "
        f"{layout}; it is not there. {source}, or say where it is: --data DIR, or {ENVIRONMENT}=DIR, the folder "
        f"{f'that holds {inner!r}' if inner else 'with train and val'}."
    )
