"""Files of `torch.save`, which are pickles: refused unless the user allows them, and then read without running them.

A file is an archive whose member `data.pkl` describes the tensors, each storage being a member of its own; or, from
torch before 1.6, a stream of pickles followed by the storages. Either way the description is read by `read_pickle`, and
a storage is a range of bytes that must lie in the file. Values are copied from there when they are asked for. Nothing
is mapped, so that a file that shrinks while it is read ends in a sentence and not in the end of the process. What the
Trainer writes beside the weights is no checkpoint and is never opened.
"""

import io
import os
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import Tensor

from rankrise.checkpoints.files._folders import File, find_file, read_bytes, show
from rankrise.checkpoints.files._safetensors import TensorInfo, check_name, read_flat
from rankrise.checkpoints.files._torch_pickle import NotPlain, Refused, Strided, read_pickle

TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pth?|th)")
_HEAD_BYTES = 600  # the first member of an archive is `<name>/data.pkl`
_STREAM = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the first pickle before torch 1.6: `_MAGIC`
_INNER = ("state_dict", "model", "model_state_dict", "model_state", "module", "net")
_DESCRIPTION = re.compile(r"(?P<root>[^/]+)/data\.pkl")
_ARCHIVE = b"PK"
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature; lengths of the name and of the extra field
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of a stream

Place = tuple[int, int]  # first byte in the file, and number of bytes


@dataclass(frozen=True)
class TorchFile:
    """The state dict of a file: what its tensors are, and where their numbers lie."""

    file: File
    tensors: Mapping[str, TensorInfo]
    values: Mapping[str, Strided]
    places: Mapping[str, Place]  # places of the storages

    def read(self, name: str) -> Tensor:
        """The whole tensor, as stored."""
        return self._read(self.values[name])

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Some of its rows."""
        return self._read(self.values[name].rows(begin, end))

    def _read(self, tensor: Strided) -> Tensor:
        if not tensor.num_elements:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        begin = self.places[tensor.storage.key][0] + tensor.offset * tensor.dtype.itemsize
        flat = read_flat(self.file, begin, tensor.span() * tensor.dtype.itemsize, tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride)


def is_weights(path: Path) -> bool:
    """Whether a file holds weights, of torch or safetensors, by its first bytes; the Trainer's other files do not."""
    if _NOT_WEIGHTS.fullmatch(path.name) or not path.is_file():
        return False
    return path.name.endswith((".safetensors", *TORCH_SUFFIXES)) or file_format(find_file(path)) is not None


def file_format(file: File) -> Literal["torch", "safetensors"] | None:
    """What a file is by its first bytes, whatever its name ends in; None if it is neither."""
    with file.open() as descriptor:
        head = read_bytes(descriptor, 0, min(file.size, _HEAD_BYTES))
    if head.startswith(_STREAM) or (head.startswith(_ARCHIVE) and b"/data.pkl" in head):
        return "torch"
    is_header = 8 < int.from_bytes(head[:8], "little") + 8 <= file.size and head[8:9] == b"{"
    return "safetensors" if is_header else None


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
    with file.open() as descriptor, os.fdopen(os.dup(descriptor), "rb") as stream:
        loaded, places = _read_description(file, stream)
    values = _state_dict(file, loaded)
    tensors: dict[str, TensorInfo] = {}
    for key, tensor in values.items():
        check_name(file, key)
        info = TensorInfo(tensor.shape, tensor.dtype, tensor.num_elements * tensor.dtype.itemsize)
        if info.num_bytes > tensor.storage.num_bytes:  # strides of zero claim what is not there
            raise ValueError(f"{show(file.path)} must store every value; {show(key)!r} repeats some. Save it again.")
        if places.get(tensor.storage.key, (0, -1))[1] != tensor.storage.num_bytes:
            raise ValueError(
                f"{show(file.path)} must hold the {tensor.storage.num_bytes} bytes of {show(key)!r}; it does not. "
                "Copy it again."
            )
        tensors[key] = info
    return TorchFile(file, tensors, values, places)


def _read_description(file: File, stream: BinaryIO) -> tuple[Any, dict[str, Place]]:
    """What was saved, with tensors as `Strided`; and where the storages lie."""
    try:
        if zipfile.is_zipfile(stream):
            return _read_archive(file, stream)
        stream.seek(0)
        if stream.read(len(_ARCHIVE)) == _ARCHIVE:
            raise zipfile.BadZipFile("its list of members is missing or cannot be read")
        stream.seek(0)
        return _read_stream(file, stream)
    except (zipfile.BadZipFile, NotImplementedError, struct.error) as error:
        raise ValueError(f"{show(file.path)} is damaged: {show(error)}. Copy it again.") from None
    except _Claims as error:
        raise ValueError(f"{show(file.path)} {error}") from None
    except Exception as error:  # a damaged pickle can raise any exception
        why = str(error) if isinstance(error, Refused) else f"its pickle is damaged ({type(error).__name__}: {error})"
        raise ValueError(
            f"{show(file.path)} must hold tensors and plain values only (weights_only); {show(why)}. "
            "Load it where you trust it and save its state dict as safetensors."
        ) from None


class _Claims(ValueError):
    """An archive is not built as `torch.save` builds it. The message is put after the name of the file."""


def _read_archive(file: File, stream: BinaryIO) -> tuple[Any, dict[str, Place]]:
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
    names = {member.filename: member for member in members}
    if len(names) < len(members):
        raise _Claims("must hold every member once. It was not read.")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise _Claims(f"must not be compressed; {show(member.filename)!r} is. Save it again.")
    total = sum(member.file_size for member in members)
    if total > file.size:
        raise _Claims(f"claims {total} bytes and has {file.size}. It was not read.")
    roots = [match["root"] for name in names if (match := _DESCRIPTION.fullmatch(name))]
    if len(roots) != 1:
        raise Refused(f"the archive holds {len(roots)} descriptions of tensors, data.pkl")
    places = {name: _place(file, stream, member) for name, member in names.items()}
    byteorder = places.get(f"{roots[0]}/byteorder")
    if byteorder is not None and read_bytes(stream.fileno(), *byteorder) != b"little":
        raise Refused("its numbers are stored in the byte order of another machine")
    loaded, _ = read_pickle(io.BytesIO(read_bytes(stream.fileno(), *places[f"{roots[0]}/data.pkl"])))
    data = f"{roots[0]}/data/"
    return loaded, {name.removeprefix(data): place for name, place in places.items() if name.startswith(data)}


def _place(file: File, stream: BinaryIO, member: zipfile.ZipInfo) -> Place:
    header = read_bytes(stream.fileno(), member.header_offset, _LOCAL_HEADER.size)
    signature, *lengths = _LOCAL_HEADER.unpack(header)
    begin = member.header_offset + _LOCAL_HEADER.size + sum(lengths)
    if signature != b"PK\3\4" or begin + member.file_size > file.size:
        raise zipfile.BadZipFile(f"{member.filename} is not where the list of members says")
    return begin, member.file_size


def _read_stream(file: File, stream: BinaryIO) -> tuple[Any, dict[str, Place]]:
    (magic, _), (protocol, _), (machine, _) = (read_pickle(stream) for _ in range(3))
    if (magic, protocol) != (_MAGIC, _PROTOCOL):
        raise Refused("it does not begin as a file of torch.save does")
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Refused("its numbers are stored in the byte order of another machine")
    (loaded, storages), (keys, _) = read_pickle(stream), read_pickle(stream)
    if not isinstance(keys, list) or not all(type(key) is str for key in keys):
        raise Refused("it does not list its storages")
    places: dict[str, Place] = {}
    for key in keys:
        if key not in storages:
            raise Refused("it lists a storage that no tensor is in")
        begin = stream.tell() + 8
        num_bytes = int.from_bytes(stream.read(8), "little") * storages[key].dtype.itemsize
        if begin + num_bytes > file.size:
            raise Refused("it ends within a storage")
        places[key] = begin, num_bytes
        stream.seek(begin + num_bytes)
    return loaded, places


def _state_dict(file: File, loaded: object) -> dict[str, Strided]:
    """The mapping of names to tensors: inside {"state_dict": …}, {"model": …} and the like, else the outer one."""
    inner = [_tensors(loaded.get(key)) for key in _INNER] if isinstance(loaded, Mapping) else []
    best = max(inner, key=len, default={}) or _tensors(loaded)
    if not best:
        raise ValueError(
            f"{show(file.path)} must hold a state dict, or one under {', '.join(_INNER)}; it holds "
            f"{type(loaded).__name__}. Save the state dict alone."
        )
    for key, value in best.items():
        if isinstance(value, NotPlain):
            raise ValueError(
                f"{show(file.path)} must store plain tensors; {show(key)!r} is sparse, quantised or without values. "
                "Save it as a dense one."
            )
    return {key: value for key, value in best.items() if isinstance(value, Strided)}


def _tensors(place: object) -> dict[str, Strided | NotPlain]:
    items = place.items() if isinstance(place, Mapping) else ()
    return {str(key): value for key, value in items if isinstance(value, Strided | NotPlain)}
