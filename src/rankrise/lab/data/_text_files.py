"""Texts as tokens in a row: from text files, and from the source text of Python's own library.

A text has a training file and a held-out one, and is encoded as bytes or by GPT-2's byte-pair encoding from its two
files. Python's library is a text that every machine with Python has. Its files are split by name, so that no file is
both learned from and tested on:

    digit = SHA-256(name) mod 10:   0 test,   1 validation,   2 … 9 training

and are read in the order of that checksum, so that any number of first tokens is spread over the library.
"""

import hashlib
import json
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankrise._extras import require
from rankrise.lab.data._data_config import DataConfig, DataWarning
from rankrise.lab.data._dataset import Dataset
from rankrise.lab.data._locate import MissingEncoding, data_root, find_bpe, find_text
from rankrise.lab.data._memory import Tokens, num_blocks
from rankrise.store import open_file

_CHUNK = 1 << 16  # characters encoded at once
_GROUP = 256  # chunks encoded in parallel, which bounds the memory that their encodings take
# GPT-2 first splits text into words, and a space belongs to the word after it. Therefore a text that is cut before a
# space with a letter after it is split into the same words as the whole text, whatever comes before the cut.
_SEAM = re.compile(r" (?=[A-Za-z])")


class Tokenizer(Protocol):
    """An encoding that turns a text into tokens."""

    vocab_size: int

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of the text."""


class ByteTokenizer:
    """An encoding whose tokens are the 256 bytes of UTF-8, and 256 for the end of the text.

    >>> ByteTokenizer().encode("né").tolist()
    [110, 195, 169, 256]
    """

    vocab_size = 257

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of the text."""
        tokens = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        return np.append(tokens, np.int32(256))


class BPETokenizer:
    """GPT-2's byte-pair encoding, which adds no tokens of its own.

    Raises:
        ModuleNotFoundError: If the package tokenizers is missing.
        ValueError: If the files do not hold such an encoding.
    """

    def __init__(self, folder: Path) -> None:
        require("GPT-2's encoding", "tokenizers", otherwise="or ask for tokenizer='bytes'")
        import tokenizers

        vocab, merges = folder / "vocab.json", folder / "merges.txt"
        self.vocab_size = _count_tokens(vocab)
        try:
            model: Any = tokenizers.models.BPE.from_file(str(vocab), str(merges))
        except Exception as error:  # the package raises plain Exception
            raise ValueError(f"{merges} must be the merges that go with {vocab}; {error}. Get both again.") from error
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of the text, which are the same as if it were encoded as a whole."""
        chunks = list(_chunks(text))
        parts = [np.zeros(0, dtype=np.int32)]
        for i in range(0, len(chunks), _GROUP):
            encodings = self._tokenizer.encode_batch_fast(chunks[i : i + _GROUP], add_special_tokens=False)
            parts += [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return np.concatenate(parts)


def _chunks(text: str) -> Iterator[str]:
    begin = 0
    while begin < len(text):
        seam = _SEAM.search(text, begin + _CHUNK)
        end = seam.start() if seam else len(text)
        yield text[begin:end]
        begin = end


def _count_tokens(path: Path) -> int:
    """Return the size of a vocabulary, whose tokens must be numbered 0, 1, … without a gap."""
    try:
        with open_file(path) as file:
            vocab = json.load(file)
        ids = sorted(vocab.values())
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} must map tokens to integers; {error}. Get it again.") from error
    if not ids or ids != list(range(len(ids))):
        raise ValueError(f"{path} must number its tokens 0, 1, … without a gap; it does not. Get it again.")
    return len(ids)


def text(config: DataConfig, root: Path | str | None) -> Tokens:
    """Read and encode a text; the held-out part is the file `test` if there is one, else `valid`.

    Raises:
        FileNotFoundError: If the folder or the held-out file is missing, or GPT-2's encoding where it was asked for.
        ValueError: If a file is empty, not UTF-8, too short, or has no column `text`; the message names the file.
    """
    folder, files = find_text(config, root)
    tokenizer = _find_tokenizer(config, folder, data_root(root))
    context = config.context or 1024
    train, test = (_encode(paths, tokenizer, context) for paths in files)
    return Tokens(
        _first(train, config.num_train, context, "num_train"),
        _first(test, config.num_test, context, "num_test"),
        context=context,
        vocab_size=tokenizer.vocab_size,
    )


def text_tokenizer(config: DataConfig, root: Path | str | None) -> Tokenizer:
    """Return the encoding of a text.

    Raises:
        FileNotFoundError: If the text or its encoding is not there.
    """
    return _find_tokenizer(config, find_text(config, root)[0], data_root(root))


def _find_tokenizer(config: DataConfig, folder: Path, root: Path) -> Tokenizer:
    if config.tokenizer == "bytes":
        return ByteTokenizer()
    try:
        return BPETokenizer(find_bpe(folder, root))
    except MissingEncoding as error:
        if config.tokenizer == "gpt2":
            raise
        message = f"{error.lack} Bytes are used instead; ask for tokenizer='bytes' to say so."
    warnings.warn(message, DataWarning, stacklevel=2)
    return ByteTokenizer()


def _encode(paths: list[Path], tokenizer: Tokenizer, context: int) -> Tensor:
    content = "".join(_read_parquet(path) if path.suffix == ".parquet" else _read_plain(path) for path in paths)
    named = paths[0] if len(paths) == 1 else f"{paths[0]} with its {len(paths) - 1} other shards"
    if not content.strip():
        raise ValueError(f"{named} must hold text; it is empty. Get it again.")
    tokens = torch.from_numpy(tokenizer.encode(content))
    if num_blocks(tokens, context) == 0:
        rule = f"must have at least {context + 1} tokens for one block of `context` {context}"
        raise ValueError(f"{named} {rule}; it has {len(tokens)}. Set a smaller `context`.")
    return tokens


def _read_plain(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8; byte {error.start} is not. Convert it first.") from error


def _read_parquet(path: Path) -> str:
    """Return the column `text`, whose rows are lines with or without their line break."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException, types

    try:
        with open_file(path) as file:
            schema = pq.read_schema(file)
            kind = schema.field("text").type if "text" in schema.names else None
            if kind is None or not (types.is_string(kind) or types.is_large_string(kind)):
                columns = ", ".join(schema.names)
                raise ValueError(f"{path} must have a column `text` of strings; its columns are {columns}.")
            rows = pq.read_table(file, columns=["text"])["text"].to_pylist()
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a Parquet file; it is truncated or damaged ({error}).") from error
    return "".join(row if row.endswith("\n") else row + "\n" for row in rows if row is not None)


def _first(tokens: Tensor, num: int | None, context: int, what: str) -> Tensor:
    """Return the first `num` blocks with the token after them."""
    there = num_blocks(tokens, context)
    if num is not None and num > there:
        raise ValueError(f"`{what}` must be at most the {there} blocks of {context} tokens there are; got {num}.")
    return tokens[: (there if num is None else num) * context + 1].clone()


Split: TypeAlias = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
# Left out are tests, installed packages, and files that programs wrote: tables of characters, the text of help pages.
_INSTALLED = ("site-packages", "dist-packages")
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings", "pydoc_data", "ensurepip", *_INSTALLED}


@dataclass(frozen=True)
class LibraryText:
    """Tokens of the three splits of Python's library, and what they were made from."""

    tokens: dict[Split, Tensor]  # int32, a row each
    num_files: dict[Split, int]
    sha256: str  # checksum of the names and contents of all files that were read
    python: str  # version of Python
    context: int
    vocab_size: int

    def dataset(self, held_out: Split) -> Dataset:
        """Return the training tokens as a data set with one of the other splits as its test set."""
        return Tokens(self.tokens["train"], self.tokens[held_out], context=self.context, vocab_size=self.vocab_size)

    def to_json(self) -> dict[str, object]:
        """Return a description of the text, without its tokens."""
        return {
            "python": self.python,
            "num_files": dict(self.num_files),
            "num_tokens": {split: len(tokens) for split, tokens in self.tokens.items()},
            "sha256": self.sha256,
        }


def split_of(name: str) -> Split:
    """Return the split that a file belongs to, which depends on its name alone.

    >>> [split_of(name) for name in ("abc.py", "json/decoder.py", "pathlib.py")]
    ['train', 'train', 'train']
    """
    digit = int(_checksum(name), 16) % 10
    return "test" if digit == 0 else "validation" if digit == 1 else "train"


def library_files(folder: Path | None = None) -> dict[str, Path]:
    """Return the library's source files by their names below `folder`, in the order of the checksums of the names."""
    root = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    named = ((path.relative_to(root), path) for path in root.rglob("*.py"))
    kept = {name.as_posix(): path for name, path in named if not _LEFT_OUT & set(name.parts) and _is_source(name.name)}
    return {name: kept[name] for name in sorted(kept, key=_checksum)}


def load_library(
    config: DataConfig, blocks: Sequence[int], *, root: Path | str | None = None, folder: Path | None = None
) -> LibraryText:
    """Read Python's library, encoded like the text of `config`.

    Args:
        config: A text; its `context` and encoding are used. Bytes stand for the tokens of synthetic text.
        blocks: Largest numbers of blocks of `context` tokens to read from the training, validation and test files.
        root: The data folder, for GPT-2's encoding.
        folder: The library; if None, that of the running Python.

    Raises:
        FileNotFoundError: If GPT-2's encoding is not there.
        ValueError: If a split has not a single block.

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
