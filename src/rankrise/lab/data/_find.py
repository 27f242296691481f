"""Whether a data set is at hand, found out without reading it and without loading PyTorch."""

from importlib.util import find_spec
from pathlib import Path

from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._root import data_root, find_folder, missing

NO_DIGITS = "The digits come with scikit-learn, which is not installed: pip install rankrise[demo]."
CIFAR_FILES = {  # the files of each set, with the md5 of their contents as published
    "cifar10": {
        "train": {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        "test": {"test_batch": "40351d587109b95175f43aff81a1287e"},
    },
    "cifar100": {
        "train": {"train": "16019d7e3df5f24257cddd939b257f8d"},
        "test": {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    },
}
# Patterns of the training file, with what stands in its place for the held-out one, best first.
_TRAIN, _HELD_OUT = "train", ("test", "valid", "validation", "val")
_PATTERNS = ("wiki.{}.tokens", "wiki.{}.raw", "wiki.{}.txt", "{}.txt", "{}-*.parquet", "{}.parquet")
_BPE = ("vocab.json", "merges.txt")


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
    if config.name in CIFAR_FILES:
        return find_cifar(config, root)[0].parent
    if config.name == "image_folder":
        return find_splits(config, root)
    if config.name == "text":
        folder, _ = find_text(config, root)
        if config.tokenizer == "gpt2":
            find_bpe(folder, data_root(root))
        return folder
    return None


def find_cifar(config: DataConfig, root: Path | str | None) -> list[Path]:
    """The files of the set, training first, each plain or compressed.

    Raises:
        FileNotFoundError: The folder or one of them is missing.
    """
    names = [name for files in CIFAR_FILES[config.name].values() for name in files]
    folder = find_folder(config, root, *(pattern for name in names for pattern in (name, f"{name}.xz")))
    return [_cifar_file(config, folder, name) for name in names]


def _cifar_file(config: DataConfig, folder: Path, file: str) -> Path:
    for path in (folder / file, folder / f"{file}.xz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{file} is missing. {missing(config, folder)}")


def find_splits(config: DataConfig, root: Path | str | None) -> Path:
    """The folder that holds `train` and `val`.

    Raises:
        FileNotFoundError: It, or one of them, is missing.
    """
    folder = find_folder(config, root, "train")
    for split in ("train", "val"):
        if not (folder / split).is_dir():
            raise FileNotFoundError(f"{split} is missing in {folder}. {missing(config, folder)}")
    return folder


def find_text(config: DataConfig, root: Path | str | None) -> tuple[Path, tuple[list[Path], list[Path]]]:
    """The folder, and the training and held-out files of the first pattern that has both.

    Raises:
        FileNotFoundError: No folder, or no held-out file.
    """
    folder = find_folder(config, root, *(pattern.format(_TRAIN) for pattern in _PATTERNS))
    for pattern in _PATTERNS:
        train = sorted(folder.glob(pattern.format(_TRAIN)))
        for name in _HELD_OUT:
            test = sorted(folder.glob(pattern.format(name)))
            if train and test:
                return folder, (train, test)
    raise FileNotFoundError(f"There is no held-out text in {folder}. {missing(config, folder)}")


def find_bpe(folder: Path, root: Path) -> Path:
    """The folder with GPT-2's `vocab.json` and `merges.txt`, for a text in `folder`.

    Raises:
        FileNotFoundError: It is nowhere; says where it was looked for.
    """
    places = [root / "gpt2-bpe", folder, folder.parent / "gpt2-bpe"]
    for place in places:
        if all((place / name).is_file() for name in _BPE):
            return place
    where = " or ".join(str(place.absolute()) for place in dict.fromkeys(places))
    raise FileNotFoundError(
        f"GPT-2's encoding is not there: vocab.json and merges.txt were looked for in {where}. "
        "Both are on huggingface.co, openai-community/gpt2; or ask for 'bytes'."
    )
