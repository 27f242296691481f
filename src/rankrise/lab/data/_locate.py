"""Where data is looked for, which files each data set has, and what to say when they are not there.

Nothing here reads a file or imports torch.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rankrise._extras import require
from rankrise.lab.data._data_config import DataConfig

# Patterns of text files, the preferred one first; `{}` is "train", or the preferred of the names of held-out files.
_TRAIN, _HELD_OUT = "train", ("test", "valid", "validation", "val")
_PATTERNS = ("wiki.{}.tokens", "wiki.{}.raw", "wiki.{}.txt", "{}.txt", "{}-*.parquet", "{}.parquet")
_BPE = ("vocab.json", "merges.txt")
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


@dataclass(frozen=True)
class CifarFiles:
    """The files of CIFAR-10 or CIFAR-100 with the md5 of their contents as published, and the key of their labels."""

    train: dict[str, str]
    test: dict[str, str]
    labels: str
    num_classes: int


CIFAR_FILES = {
    "cifar10": CifarFiles(
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        labels="labels",
        num_classes=10,
    ),
    "cifar100": CifarFiles(
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        labels="fine_labels",
        num_classes=100,
    ),
}


def find_dataset(config: DataConfig, *, root: Path | str | None = None) -> Path | None:
    """Look for the files of a data set without reading them; `load_dataset` finds what is wrong inside them.

    Args:
        config: The data set.
        root: The data folder, as in `load_dataset`.

    Returns:
        The folder of the data set; None for data that is made on the spot.

    Raises:
        FileNotFoundError: If it is not there; the message says where it was looked for, what the layout is and how to
            get it.
        ModuleNotFoundError: If a package that the data set needs is not installed.

    >>> find_dataset(DataConfig("teacher")) is None
    True
    """
    if config.name == "digits":
        require("Loading the digits", "sklearn")
    if config.name in CIFAR_FILES:
        return find_cifar(config, root)[0].parent
    if config.name == "image_folder":
        folder = find_splits(config, root)
        require("Reading image files", "PIL")
        return folder
    if config.name == "text":
        folder, _ = find_text(config, root)
        if config.tokenizer == "gpt2":
            find_bpe(folder, data_root(root))
        return folder
    return None


def data_root(root: Path | str | None) -> Path:
    """Return the data folder: the argument, else what `RANKRISE_DATA` says, else `data` in the working directory."""
    return Path(root if root is not None else os.environ.get(ENVIRONMENT) or "data")


def find_folder(config: DataConfig, root: Path | str | None, *marks: str) -> Path:
    """Return the folder of a data set, which is the one that holds any of the files or folders `marks` (patterns).

    The folder is `path`, or the default folder of the name, below the data folder. It may be the data folder itself if
    no `path` is given, or if the data folder has the name that `path` ends in.

    Raises:
        FileNotFoundError: If there is no such folder; the message says where it was looked for, what must be there, and
            how to get it.
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
    """Return the message that says where a data set was looked for, what its layout is, and how to get it."""
    name = config.name
    layout, source = _LAYOUTS[name]
    inner = config.path or _FOLDERS[name]
    return (
        f"The data set {name!r} must be in {' or '.join(str(place.absolute()) for place in places)}, which must hold "
        f"{layout}; it is not there. {source}, or say where it is: --data DIR, or {ENVIRONMENT}=DIR, the folder "
        f"{f'that holds {inner!r}' if inner else 'with train and val'}."
    )


def find_cifar(config: DataConfig, root: Path | str | None) -> list[Path]:
    """Return the files of CIFAR-10 or CIFAR-100, training files first, each plain or compressed.

    Raises:
        FileNotFoundError: If the folder or one of the files is missing.
    """
    layout = CIFAR_FILES[config.name]
    names = (*layout.train, *layout.test)
    folder = find_folder(config, root, *(pattern for name in names for pattern in (name, f"{name}.xz")))
    return [_find_one(config, folder, name) for name in names]


def _find_one(config: DataConfig, folder: Path, file: str) -> Path:
    for path in (folder / file, folder / f"{file}.xz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{file} is missing. {missing(config, folder)}")


def find_splits(config: DataConfig, root: Path | str | None) -> Path:
    """Return the folder that holds the folders `train` and `val`.

    Raises:
        FileNotFoundError: If that folder, or `train` or `val` in it, is missing.
    """
    folder = find_folder(config, root, "train")
    for split in ("train", "val"):
        if not (folder / split).is_dir():
            raise FileNotFoundError(f"{split} is missing in {folder}. {missing(config, folder)}")
    return folder


def find_text(config: DataConfig, root: Path | str | None) -> tuple[Path, tuple[list[Path], list[Path]]]:
    """Return the folder of a text, and the training and held-out files of the first pattern that has both.

    Raises:
        FileNotFoundError: If there is no such folder, or no held-out file in it.
    """
    folder = find_folder(config, root, *(pattern.format(_TRAIN) for pattern in _PATTERNS))
    for pattern in _PATTERNS:
        train = sorted(folder.glob(pattern.format(_TRAIN)))
        for name in _HELD_OUT:
            test = sorted(folder.glob(pattern.format(name)))
            if train and test:
                return folder, (train, test)
    raise FileNotFoundError(f"There is no held-out text in {folder}. {missing(config, folder)}")


class MissingEncoding(FileNotFoundError):
    """GPT-2's `vocab.json` and `merges.txt` are in none of the folders where they were looked for.

    Attributes:
        lack: What is missing and where it was looked for, in one sentence.
    """

    def __init__(self, places: Iterable[Path]) -> None:
        where = " or ".join(str(place.absolute()) for place in dict.fromkeys(places))
        self.lack = f"GPT-2's encoding is not there: vocab.json and merges.txt were looked for in {where}."
        super().__init__(f"{self.lack} Both are on huggingface.co, openai-community/gpt2; or ask for 'bytes'.")


def find_bpe(folder: Path, root: Path) -> Path:
    """Return the folder with GPT-2's `vocab.json` and `merges.txt`, for a text in `folder`.

    Raises:
        MissingEncoding: If the two files are nowhere; the message says where they were looked for.
    """
    places = [root / "gpt2-bpe", folder, folder.parent / "gpt2-bpe"]
    for place in places:
        if all((place / name).is_file() for name in _BPE):
            return place
    raise MissingEncoding(places)
