"""WikiText and other texts: a training file and a held-out one, as tokens in a row."""

import warnings
from pathlib import Path

import torch
from torch import Tensor

from rankrise.lab.data._config import DataConfig
from rankrise.lab.data._find import find_bpe, find_text
from rankrise.lab.data._memory import Tokens, num_blocks
from rankrise.lab.data._root import data_root
from rankrise.lab.data._tokenizer import BPETokenizer, ByteTokenizer, Tokenizer
from rankrise.lab.data._warning import DataWarning


def text(config: DataConfig, root: Path | str | None) -> Tokens:
    """Read and encode a text; the held-out part is `test` if there, else `valid`.

    Raises:
        FileNotFoundError: No folder, no held-out file, or no encoding where one was asked for.
        ValueError: A file is empty, not UTF-8, too short, or has no column `text`; names it.
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
    """What a text is encoded with.

    Raises:
        FileNotFoundError: The text is not there, or its encoding.
    """
    return _find_tokenizer(config, find_text(config, root)[0], data_root(root))


def _find_tokenizer(config: DataConfig, folder: Path, root: Path) -> Tokenizer:
    if config.tokenizer == "bytes":
        return ByteTokenizer()
    try:
        return BPETokenizer(find_bpe(folder, root))
    except FileNotFoundError as error:
        if config.tokenizer == "gpt2":
            raise
        lack = str(error).partition(". ")[0]
    warnings.warn(f"{lack}. Bytes are used instead; ask for tokenizer='bytes' to say so.", DataWarning, stacklevel=2)
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
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8; byte {error.start} is not. Convert it first.") from error


def _read_parquet(path: Path) -> str:
    """The column `text`; rows are lines, with or without their line break."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException, types

    try:
        schema = pq.read_schema(path)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} must be a Parquet file; it is truncated or damaged ({error}).") from error
    kind = schema.field("text").type if "text" in schema.names else None
    if kind is None or not (types.is_string(kind) or types.is_large_string(kind)):
        raise ValueError(f"{path} must have a column `text` of strings; its columns are {', '.join(schema.names)}.")
    try:
        rows = pq.read_table(path, columns=["text"])["text"].to_pylist()
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a Parquet file; it is truncated or damaged ({error}).") from error
    return "".join(row if row.endswith("\n") else row + "\n" for row in rows if row is not None)


def _first(tokens: Tensor, num: int | None, context: int, what: str) -> Tensor:
    """The first `num` blocks, with the token after them."""
    there = num_blocks(tokens, context)
    if num is not None and num > there:
        raise ValueError(f"`{what}` must be at most the {there} blocks of {context} tokens there are; got {num}.")
    return tokens[: (there if num is None else num) * context + 1].clone()
