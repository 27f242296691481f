"""Which data: a value of JSON's types, checked when it is made."""

from dataclasses import dataclass, fields
from pathlib import PurePosixPath, PureWindowsPath

from rankrise._choices import check_choice
from rankrise._integers import as_count
from rankrise.lab.data._names import AUGMENTATIONS, FIXED_SIZE, SETTINGS, TOKENIZERS


@dataclass(frozen=True)
class DataConfig:
    """A data set by name, with what varies about it; nothing is read before `load_dataset`.

    A setting that means nothing for a data set is refused, not ignored.

    Attributes:
        name: `"cifar10"`, `"cifar100"`, `"image_folder"`, `"text"`: read from the data folder. `"digits"`, `"teacher"`,
            `"synthetic_images"`, `"synthetic_text"`: made on the spot.
        path: Folder below the data folder; `cifar-10-batches-py`, `cifar-100-python`, `wikitext-2` or the data folder
            itself unless given.
        augment: Any of `"flip"` and `"crop"`, of images.
        num_train: Training samples to keep; all unless given. Of images a seeded choice with equal classes as far as
            possible, a smaller one inside a larger; of texts the first blocks; of synthetic data how many to make.
        num_test: Test samples, likewise; of the teacher task a fifth of `samples` unless given.
        random_labels: Replace every training label by a uniform one, once and for all.
        image_size: Side of the square images: 64 for image folders and 32 for synthetic images unless given.
        context: Tokens of a block: 1024 of a text and 64 of synthetic text unless given.
        tokenizer: `"gpt2"` or `"bytes"`; GPT-2's if its files are found, bytes with a warning otherwise, unless given.
        num_classes: Classes of synthetic images, 10 unless given; vocabulary of synthetic text, 64.
        samples: Training sequences of the teacher task, 1000 unless given.
        tokens: Tokens of one of its sequences, 10 unless given.
        dim: Dimension of one of its tokens, 50 unless given.
        seed: Of all that is drawn here: subsets, labels, tasks. The order of training has a seed of its own.

    Raises:
        ValueError: A setting is not as above.

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
        if isinstance(self.augment, list):  # as JSON gives it
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
    """A folder below the data folder: a spec from elsewhere must not choose what else is read."""
    fine = isinstance(path, str) and path != "" and "\0" not in path and "\\" not in path
    if fine:
        parts = PurePosixPath(str(path))
        fine = not parts.is_absolute() and not PureWindowsPath(str(path)).drive and ".." not in parts.parts
    if not fine:
        raise ValueError(
            f"`path` must be a folder below the data folder, relative and without '..'; got {path!r}. "
            "To read from elsewhere, give that folder as the data folder."
        )
