"""The source text of Python's own library: a text that every machine with Python has.

Files are split by name, so that no file is both learned from and tested on:

    digit = SHA-256(name) mod 10:   0 test,   1 validation,   2 … 9 training

and are read in the order of that checksum, so that the first so many tokens are spread over the library.
"""

import hashlib
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._dataset import Dataset
from rankrise.lab.data._memory import Tokens
from rankrise.lab.data._text import text_tokenizer
from rankrise.lab.data._tokenizer import ByteTokenizer, Tokenizer

Split: TypeAlias = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
# Tests, installed packages, and files that programs wrote: tables of characters, the text of help pages.
_INSTALLED = ("site-packages", "dist-packages")
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings", "pydoc_data", "ensurepip", *_INSTALLED}


@dataclass(frozen=True)
class LibraryText:
    """Tokens of the three splits, and what they were made of."""

    tokens: dict[Split, Tensor]  # int32, a row each
    num_files: dict[Split, int]
    sha256: str  # of the names and contents of all files that were read
    python: str  # version
    context: int
    vocab_size: int

    def dataset(self, held_out: Split) -> Dataset:
        """Training tokens with one of the other splits as the test set."""
        return Tokens(self.tokens["train"], self.tokens[held_out], context=self.context, vocab_size=self.vocab_size)

    def to_json(self) -> dict[str, object]:
        """What the text is, without the text."""
        return {
            "python": self.python,
            "num_files": dict(self.num_files),
            "num_tokens": {split: len(tokens) for split, tokens in self.tokens.items()},
            "sha256": self.sha256,
        }


def split_of(name: str) -> Split:
    """Which split a file is in, by its name alone.

    >>> [split_of(name) for name in ("abc.py", "json/decoder.py", "pathlib.py")]
    ['train', 'train', 'train']
    """
    digit = int(_checksum(name), 16) % 10
    return "test" if digit == 0 else "validation" if digit == 1 else "train"


def library_files(folder: Path | None = None) -> dict[str, Path]:
    """Source files of the running Python's library by their names below `folder`, in the order of their checksums."""
    root = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    named = ((path.relative_to(root), path) for path in root.rglob("*.py"))
    kept = {name.as_posix(): path for name, path in named if not _LEFT_OUT & set(name.parts) and _is_source(name.name)}
    return {name: kept[name] for name in sorted(kept, key=_checksum)}


def load_library(
    config: DataConfig, blocks: Sequence[int], *, root: Path | str | None = None, folder: Path | None = None
) -> LibraryText:
    """Read the library, encoded as the text of `config` is.

    Args:
        config: A text; its `context` and encoding are used. Bytes stand for the tokens of synthetic text.
        blocks: The most blocks of `context` tokens of the training, validation and test files.
        root: The data folder, for GPT-2's encoding.
        folder: The library; the running Python's unless given.

    Raises:
        FileNotFoundError: GPT-2's encoding is not there.
        ValueError: A split has not one block.

    >>> text = load_library(DataConfig("synthetic_text", context=16), (4, 1, 1))
    >>> {split: len(tokens) for split, tokens in text.tokens.items()}
    {'train': 65, 'validation': 17, 'test': 17}
    """
    tokenizer: Tokenizer = ByteTokenizer() if config.name != "text" else text_tokenizer(config, root)
    context = config.context or 1024
    wanted = {split: num * context + 1 for split, num in zip(SPLITS, blocks, strict=True)}
    parts: dict[Split, list[np.ndarray]] = {split: [] for split in SPLITS}
    lengths, digest = dict.fromkeys(SPLITS, 0), hashlib.sha256()
    for name, path in library_files(folder).items():
        split = split_of(name)
        if lengths[split] >= wanted[split]:
            continue
        content = path.read_bytes()
        digest.update(name.encode() + b"\0" + content + b"\0")
        parts[split].append(tokenizer.encode(content.decode("utf-8", errors="replace")))
        lengths[split] += len(parts[split][-1])
    short = [split for split in SPLITS if lengths[split] <= context]
    if short:
        raise ValueError(
            f"Python's library must have more than {context} tokens of every split; {', '.join(short)} has not. "
            "Use a Python with its library in source files, or a smaller `context`."
        )
    tokens = {split: torch.from_numpy(np.concatenate(parts[split])[: wanted[split]]) for split in SPLITS}
    num_files = {split: len(found) for split, found in parts.items()}
    return LibraryText(tokens, num_files, digest.hexdigest(), platform.python_version(), context, tokenizer.vocab_size)


def _is_source(name: str) -> bool:
    return not name.startswith("_sysconfigdata")  # how this Python was built


def _checksum(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
