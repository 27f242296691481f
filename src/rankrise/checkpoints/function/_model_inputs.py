"""Inputs of a model from a file: named tensors, or text that the model's own tokenizer reads."""

from pathlib import Path

import torch
from torch import Tensor

from rankrise._extras import require
from rankrise.checkpoints.files import find_inside, open_safetensors, show
from rankrise.store import open_file, read_npz

_LENGTH = 128  # tokens of one input that is made from text
_LONGEST_TEXT = 10_000_000  # bytes; a tokenizer takes a multiple of this in memory
_LEFT_OUT = -100  # label of a position that does not count


def read_inputs(path: Path, model: Path, *, most: int | None = None) -> dict[str, Tensor]:
    """Read named tensors from .npz or .safetensors, or text, which becomes pieces of 128 tokens.

    A text, or a file that has `input_ids` alone, gets `labels`: the next token at every position.

    Args:
        path: The file.
        model: The folder of the model, whose tokenizer reads text.
        most: The largest number of inputs to take, from the beginning of the file; all by default.

    Raises:
        ValueError: The file holds no such tensors, its text is too short, or the model has no tokenizer.
        ImportError: The file holds text, and transformers is not installed.
    """
    if path.suffix == ".npz":
        found = {name: torch.from_numpy(array) for name, array in read_npz(path, argument="--data").items()}
    elif path.suffix == ".safetensors":
        file = open_safetensors(find_inside(path.parent, path.name))
        found = {name: file.read(name) for name in file.tensors}
    else:
        found = {"input_ids": _tokens(path, model)}
    if not found or any(tensor.ndim == 0 for tensor in found.values()):
        raise ValueError(f"The data in {show(str(path))} must be tensors with the inputs along their first dimension.")
    if len(sizes := {len(tensor) for tensor in found.values()}) != 1:
        raise ValueError(f"The tensors in {show(str(path))} must have one number of inputs; got {sorted(sizes)}.")
    if set(found) == {"input_ids"}:
        ids = found["input_ids"].long()
        found = {"input_ids": ids, "labels": torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], _LEFT_OUT)], dim=1)}
    return {name: tensor[:most] for name, tensor in found.items()}


def _tokens(path: Path, model: Path) -> Tensor:
    require("Reading text", "transformers", otherwise="or give model inputs as .npz or .safetensors")
    from transformers import AutoTokenizer

    with open_file(path) as file:
        content = file.read(_LONGEST_TEXT + 1)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(content) > _LONGEST_TEXT:
        raise ValueError(
            f"`--data` must be .npz, .safetensors, or text in UTF-8 of at most {_LONGEST_TEXT} bytes; "
            f"{show(path.name)} is not. Convert it, or give a part of it."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"Text needs the model's tokenizer, and {show(str(model))} has none that transformers can load. Save the "
            "tokenizer there, or give model inputs as .npz or .safetensors."
        ) from error
    ids = tokenizer(text)["input_ids"]
    length = min(_LENGTH, len(ids))
    if length < 2:
        raise ValueError(f"The text in {show(str(path))} must have at least 2 tokens; it has {len(ids)}.")
    return torch.tensor(ids[: len(ids) // length * length]).reshape(-1, length)
