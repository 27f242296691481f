"""Files of `torch.save`, which are pickles: refused unless the user allows them, and then read with weights_only.

`weights_only` keeps a pickle from running code and does not bound sizes, so the members of the archive are checked
against the file first. What the Trainer writes beside the weights is no checkpoint and is never opened.
"""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints.files._folders import File, show
from rankrise.checkpoints.files._safetensors import TensorInfo, check_name

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pt|pth)")
_INNER = ("state_dict", "model", "model_state_dict", "model_state", "module", "net")
_MOST_BYTES_OLD = 2**31


@dataclass(frozen=True)
class TorchFile:
    """The state dict of a file, mapped and not read."""

    tensors: Mapping[str, TensorInfo]
    values: Mapping[str, Tensor]

    def read(self, name: str) -> Tensor:
        """The whole tensor, as stored."""
        return self.values[name]

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Some of its rows."""
        return self.values[name][begin:end]


def is_weights(name: str) -> bool:
    """Whether a file name is that of weights in torch's format, and not of the Trainer's other files."""
    return name.endswith(TORCH_SUFFIXES) and not _NOT_WEIGHTS.fullmatch(name)


def open_torch(file: File, *, allowed: bool) -> TorchFile:
    """The state dict in a file of `torch.save`.

    Args:
        file: The file.
        allowed: Whether the user said that pickles may be read.

    Raises:
        ValueError: Not allowed; sizes that do not add up; a pickle of more than tensors; no state dict.
    """
    name = file.path.name
    if _NOT_WEIGHTS.fullmatch(name):
        raise ValueError(f"{show(file.path)} is the Trainer's own state, not weights, and is never opened.")
    if not allowed:
        raise ValueError(
            f"{show(file.path)} is a pickle, which can run code when it is read. Convert it to safetensors, or pass "
            "`allow_torch_load=True` (--allow-torch-load): it is then read with weights_only."
        )
    is_archive = _check_sizes(file)
    with file.open():  # the same file as was found
        loaded = _load(file, mapped=is_archive)
    values = _state_dict(file, loaded)
    tensors = {name: TensorInfo(tuple(t.shape), t.dtype, t.numel() * t.element_size()) for name, t in values.items()}
    for key, info in tensors.items():
        check_name(file, key)
        if info.num_bytes > values[key].untyped_storage().nbytes():  # strides of zero claim what is not there
            raise ValueError(f"{show(file.path)} must store every value; {show(key)!r} repeats some. Save it again.")
    return TorchFile(tensors, values)


def _check_sizes(file: File) -> bool:
    """Refuse an archive whose members claim more than the file holds; says whether it is an archive."""
    if not zipfile.is_zipfile(file.real):
        if file.size > _MOST_BYTES_OLD:
            raise ValueError(f"{show(file.path)} must be in the format of torch 1.6 or later. Save it again.")
        return False
    try:
        with zipfile.ZipFile(file.real) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(f"{show(file.path)} is damaged: {show(error)}. Copy it again.") from None
    names = [member.filename for member in members]
    if len(set(names)) < len(names):
        raise ValueError(f"{show(file.path)} must hold every member once. It was not read.")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{show(file.path)} must not be compressed; {show(member.filename)!r} is. Save it again.")
    total = sum(member.file_size for member in members)
    if total > file.size:
        raise ValueError(f"{show(file.path)} claims {total} bytes and has {file.size}. It was not read.")
    return True


def _load(file: File, *, mapped: bool) -> Any:
    try:
        return torch.load(file.real, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        found = re.search(r"Unsupported (?:global|class)[^ ]*:? (?:GLOBAL )?(\S+)", str(error))
        why = f"it asks for {show(found[1])}" if found else show(str(error).split("\n")[0])
        raise ValueError(
            f"{show(file.path)} must hold tensors and plain values only (weights_only); {why}. "
            "Load it where you trust it and save its state dict as safetensors."
        ) from None


def _state_dict(file: File, loaded: object) -> dict[str, Tensor]:
    """The mapping of names to tensors: inside {"state_dict": …}, {"model": …} and the like, else the outer one."""
    inner = [_tensors(loaded.get(key)) for key in _INNER] if isinstance(loaded, Mapping) else []
    best = max(inner, key=len, default={}) or _tensors(loaded)
    if not best:
        raise ValueError(
            f"{show(file.path)} must hold a state dict, or one under {', '.join(_INNER)}; it holds "
            f"{type(loaded).__name__}. Save the state dict alone."
        )
    for key, value in best.items():
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise ValueError(
                f"{show(file.path)} must store plain tensors; {show(key)!r} is sparse, quantised or without values. "
                "Save it as a dense one."
            )
    return best


def _tensors(place: object) -> dict[str, Tensor]:
    """Without the graph that parameters would carry along."""
    items = place.items() if isinstance(place, Mapping) else ()
    return {str(key): value.detach() for key, value in items if isinstance(value, Tensor)}
