"""Which data: a value of JSON's types, checked when it is made. Nothing here imports torch or numpy."""

from dataclasses import dataclass, fields
from pathlib import PurePosixPath, PureWindowsPath
from types import MappingProxyType

from rankrise._arguments import as_count, check_choice

# From a data set's name to the settings, beyond `name` and `seed`, that mean something for it.
_IMAGES = ("augment", "num_train", "num_test", "random_labels", "image_size")
SETTINGS = MappingProxyType(
    {
        "cifar10": ("path", *_IMAGES),
        "cifar100": ("path", *_IMAGES),
        "image_folder": ("path", *_IMAGES),
        "digits": _IMAGES,
        "synthetic_images": (*_IMAGES, "num_classes"),
        "text": ("path", "num_train", "num_test", "context", "tokenizer"),
        "synthetic_text": ("num_train", "num_test", "context", "num_classes"),
        "teacher": ("num_test", "samples", "tokens", "dim"),
    }
)
FIXED_SIZE = MappingProxyType({"cifar10": 32, "cifar100": 32, "digits": 8})  # the only `image_size` that may be given
TOKENIZERS = ("gpt2", "bytes")
AUGMENTATIONS = ("flip", "crop")


@dataclass(frozen=True)
class DataConfig:
    """A data set by name, with what varies about it; nothing is read before `load_dataset`.

    A setting that means nothing for a data set is refused, not ignored.

    Attributes:
        name: `"cifar10"`, `"cifar100"`, `"image_folder"`, `"text"`: read from the data folder. `"digits"`, `"teacher"`,
            `"synthetic_images"`, `"synthetic_text"`: made on the spot.
        path: Folder below the data folder; if None, `cifar-10-batches-py`, `cifar-100-python`, `wikitext-2` or the data
            folder itself.
        augment: Augmentations of images: any of `"flip"` and `"crop"`.
        num_train: Number of training samples to keep; all if None. Images are a seeded choice with equal classes as far
            as possible, and a smaller choice is part of a larger one; texts keep their first blocks; synthetic data is
            made in this number.
        num_test: Number of test samples, likewise; if None, the teacher task has a fifth of `samples`.
        random_labels: Replace every training label by a uniformly drawn one that stays the same in every epoch.
        image_size: Side of the square images; if None, 64 for image folders and 32 for synthetic images.
        context: Tokens of a block; if None, 1024 for a text and 64 for synthetic text.
        tokenizer: `"gpt2"` or `"bytes"`; if None, GPT-2's if its files are found, otherwise bytes with a warning.
        num_classes: Classes of synthetic images, 10 if None; size of the vocabulary of synthetic text, 64 if None.
        samples: Training sequences of the teacher task; 1000 if None.
        tokens: Tokens of a sequence of the teacher task; 10 if None.
        dim: Dimension of a token of the teacher task; 50 if None.
        seed: Seed of everything that is drawn here: subsets, labels, tasks. The order of training has its own seed.

    Raises:
        ValueError: If a setting breaks its rule above.

    >>> DataConfig("cifar10", augment=("flip", "crop"), num_train=1000).name
    'cifar10'
    >>> DataConfig("digits", augment=("flop",))
    Traceback (most recent call last):
    ValueError: `augment` must be one of crop, flip; got 'flop'. Did you mean 'flip'?
    """

    name: str
    path: str | None = None
    augment: tuple[str, ...] = ()
    num_train: int | None = None
    num_test: int | None = None
    random_labels: bool = False
    image_size: int | None = None
    context: int | None = None
    tokenizer: str | None = None
    num_classes: int | None = None
    samples: int | None = None
    tokens: int | None = None
    dim: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("name", self.name, sorted(SETTINGS))
        if isinstance(self.augment, list):  # JSON has lists and no tuples
            object.__setattr__(self, "augment", tuple(self.augment))
        self._check_types()
        for field in fields(self):
            given = getattr(self, field.name) != field.default
            if given and field.name not in ("name", "seed", *SETTINGS[self.name]):
                raise ValueError(
                    f"`{field.name}` must not be set for {self.name!r}, where it means nothing; "
                    f"got {getattr(self, field.name)!r}. Its settings are {', '.join((*SETTINGS[self.name], 'seed'))}."
                )
        if self.image_size not in (None, FIXED_SIZE.get(self.name, self.image_size)):
            raise ValueError(f"`image_size` of {self.name!r} must be {FIXED_SIZE[self.name]}; got {self.image_size}.")
        if self.path is not None:
            _check_path(self.path)

    @property
    def num_made(self) -> int:
        """Numbers in data that is made on the spot; 0 for data from files.

        >>> DataConfig("synthetic_text", num_train=10, num_test=2, context=8, num_classes=3).num_made
        105
        """
        if self.name == "teacher":
            samples = self.samples or 1000
            return 2 * (samples + (self.num_test or samples)) * (self.tokens or 10) * (self.dim or 50)
        if self.name == "synthetic_images":
            size, classes = self.image_size or 32, self.num_classes or 10
            return 3 * size**2 * ((self.num_train or 2000) + (self.num_test or 400) + classes)
        if self.name == "synthetic_text":
            blocks = (self.num_train or 512) + (self.num_test or 64)
            return blocks * (self.context or 64) + (self.num_classes or 64) ** 2
        return 0

    def _check_types(self) -> None:
        if not isinstance(self.augment, tuple):
            raise ValueError(f"`augment` must be a tuple of names such as ('flip', 'crop'); got {self.augment!r}.")
        for i, augmentation in enumerate(self.augment):
            check_choice("augment", augmentation, sorted(AUGMENTATIONS))
            if augmentation in self.augment[:i]:
                raise ValueError(f"`augment` must name each augmentation once; got {self.augment!r}.")
        if type(self.random_labels) is not bool:
            raise ValueError(f"`random_labels` must be true or false; got {self.random_labels!r}.")
        if self.tokenizer is not None:
            check_choice("tokenizer", self.tokenizer, sorted(TOKENIZERS))
        for name, least in _COUNTS.items():
            if name == "seed" or getattr(self, name) is not None:
                object.__setattr__(self, name, as_count(getattr(self, name), name, least=least))


_COUNTS = {
    "num_train": 1,
    "num_test": 1,
    "image_size": 8,
    "context": 1,
    "num_classes": 2,
    "samples": 1,
    "tokens": 1,
    "dim": 1,
    "seed": 0,
}


def _check_path(path: object) -> None:
    """Refuse a path that leads out of the data folder: a spec may come from anyone and must not read elsewhere."""
    fine = isinstance(path, str) and path != "" and path.isprintable() and "\\" not in path
    if fine:
        parts = PurePosixPath(str(path))
        fine = not parts.is_absolute() and not PureWindowsPath(str(path)).drive and ".." not in parts.parts
    if not fine:
        raise ValueError(
            f"`path` must be a folder below the data folder, relative and without '..'; got {path!r}. "
            "To read from elsewhere, give that folder as the data folder."
        )


class DataWarning(UserWarning):
    """Data that was read, but is not quite what was asked for; the category of every warning of this package."""
