"""From text to integers: bytes, or GPT-2's byte-pair encoding from its two files."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 16  # characters encoded at once
_GROUP = 256  # chunks encoded in parallel: bounds the memory that encodings take
# GPT-2 splits text into words before anything else, and a space belongs to the word after it: text cut before a space
# that a letter follows is split as the whole is, whatever comes before.
_SEAM = re.compile(r" (?=[A-Za-z])")


class Tokenizer(Protocol):
    """What turns a text into tokens."""

    vocab_size: int

    def encode(self, text: str) -> NDArray[np.int32]:
        """Tokens of the text."""


class ByteTokenizer:
    """Tokens are the 256 bytes of UTF-8, and 256 for the end of the text.

    >>> ByteTokenizer().encode("né").tolist()
    [110, 195, 169, 256]
    """

    vocab_size = 257

    def encode(self, text: str) -> NDArray[np.int32]:
        """Tokens of the text."""
        tokens = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        return np.append(tokens, np.int32(256))


class BPETokenizer:
    """GPT-2's byte-pair encoding; adds no tokens of its own.

    Raises:
        ModuleNotFoundError: The package tokenizers is missing.
        ValueError: The files are not such an encoding's.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import tokenizers
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "GPT-2's encoding is done by the package tokenizers, which is not installed: pip install rankrise[hf]; "
                "or ask for tokenizer='bytes'."
            ) from error
        vocab, merges = folder / "vocab.json", folder / "merges.txt"
        self.vocab_size = _count_tokens(vocab)
        try:
            model: Any = tokenizers.models.BPE.from_file(str(vocab), str(merges))
        except Exception as error:  # the package raises plain Exception
            raise ValueError(f"{merges} must be the merges that go with {vocab}; {error}. Get both again.") from error
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Tokens of the text, the same as if encoded in one go."""
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
    """Size of a vocabulary: tokens are numbered 0, 1, …, without a gap."""
    try:
        vocab = json.loads(path.read_bytes())
        ids = sorted(vocab.values())
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} must map tokens to integers; {error}. Get it again.") from error
    if not ids or ids != list(range(len(ids))):
        raise ValueError(f"{path} must number its tokens 0, 1, … without a gap; it does not. Get it again.")
    return len(ids)
