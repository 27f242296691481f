"""One safetensors file: a checked header, and tensors that are read on demand or written one at a time.

The header is believed only where it adds up: known formats, sizes that fit the shapes, and tensors that tile the rest
of the file without overlap, hole or remainder, which is the format's own rule. Reading copies; nothing stays mapped. A
file is written header first, from shapes alone, and then tensor by tensor, so that only one of them is in memory.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints.files._folders import File, parse_json, read_bytes, read_into, show
from rankrise.store import replacing

_HEADER_BYTES = 100 * 2**20
_MOST_TENSORS = 500_000
_MOST_DIMENSIONS = 16
_LONGEST_NAME = 500
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorInfo:
    """What a file says about a tensor without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class SafetensorsFile:
    """A file whose header has been checked."""

    file: File
    tensors: Mapping[str, TensorInfo]
    begins: Mapping[str, int]  # byte at which each tensor's data begins
    metadata: Mapping[str, Any]

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` of a tensor with at least one dimension, as stored, on the CPU."""
        info = self.tensors[name]
        row_bytes = info.num_bytes // info.shape[0] if info.shape[0] else 0
        shape = (end - begin, *info.shape[1:])
        return self._read(self.begins[name] + begin * row_bytes, (end - begin) * row_bytes, shape, info.dtype)

    def read(self, name: str) -> Tensor:
        """The whole tensor, as stored, on the CPU."""
        info = self.tensors[name]
        return self._read(self.begins[name], info.num_bytes, info.shape, info.dtype)

    def _read(self, begin: int, length: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return read_flat(self.file, begin, length, dtype).reshape(shape)


def read_flat(file: File, begin: int, length: int, dtype: torch.dtype) -> Tensor:
    """Bytes of a file as numbers in a row, copied to the CPU.

    Raises:
        ValueError: The file has changed since it was found.
    """
    buffer = torch.empty(length, dtype=torch.uint8, device="cpu")
    with file.open() as descriptor:
        read_into(
            descriptor,
            begin,
            memoryview(buffer.numpy()),  # type: ignore[arg-type]
        )
    return buffer.view(dtype)


def open_safetensors(file: File) -> SafetensorsFile:
    """Read and check the header.

    Raises:
        ValueError: Not a safetensors file, damaged, or made to mislead; one sentence that says how.
    """
    header, start = _header(file)
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise _unsound(file, "its __metadata__ is not an object")
    if len(header) > _MOST_TENSORS:
        raise _unsound(file, f"it lists {len(header)} tensors, more than {_MOST_TENSORS}")
    tensors: dict[str, TensorInfo] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        check_name(file, name)
        tensors[name], span = _entry(file, name, entry)
        spans.append((*span, name))
    _check_tiling(file, spans, file.size - start)
    return SafetensorsFile(file, tensors, {name: start + begin for begin, _, name in spans}, metadata)


def check_name(file: File, name: str) -> None:
    """Refuse names that cannot be written or that take long to match.

    Raises:
        ValueError: Longer than 500 characters, or half of a surrogate pair in it.
    """
    if len(name) > _LONGEST_NAME or any("\ud800" <= c <= "\udfff" for c in name):
        raise ValueError(
            f"{show(file.path)} must have names of tensors in Unicode, up to {_LONGEST_NAME} characters; got "
            f"{show(name, 60)!r} of {len(name)}. Rename it."
        )


_LFS = b"version "  # how a pointer of Git LFS begins; as the length of a header it would be 2.3e18


def _header(file: File) -> tuple[dict[str, Any], int]:
    with file.open() as descriptor:
        if file.size < 8:
            raise _unsound(file, f"it has {file.size} bytes")
        first = read_bytes(descriptor, 0, 8)
        if first == _LFS:
            raise ValueError(
                f"{show(file.path)} must hold weights; it is a pointer of Git LFS, and the weights are elsewhere. "
                "Fetch them with `git lfs pull`, or download the file."
            )
        length = int.from_bytes(first, "little")
        if length > min(_HEADER_BYTES, file.size - 8):
            raise _unsound(file, f"its header claims {length} bytes of the file's {file.size}")
        return parse_json(read_bytes(descriptor, 8, length), file.path), 8 + length


def _entry(file: File, name: str, entry: object) -> tuple[TensorInfo, tuple[int, int]]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _unsound(file, f"its entry {show(name)!r} is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _unsound(file, f"{show(name)!r} is stored as {show(dtype)!r}, which is not understood")
    if not _are_counts(shape) or len(shape) > _MOST_DIMENSIONS:
        raise _unsound(file, f"{show(name)!r} has the shape {show(shape)}")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _unsound(file, f"{show(name)!r} has the offsets {show(offsets)}")
    num_bytes = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != num_bytes:
        raise _unsound(file, f"{show(name)!r} needs {num_bytes} bytes and has {offsets[1] - offsets[0]}")
    return TensorInfo(tuple(shape), DTYPES[dtype], num_bytes), (offsets[0], offsets[1])


def _check_tiling(file: File, spans: list[tuple[int, int, str]], length: int) -> None:
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            how = "overlaps what comes before it" if begin < at else "leaves a hole before it"
            raise _unsound(file, f"{show(name)!r} {how}")
        at = end
    if at != length:
        raise _unsound(file, f"its tensors end at byte {at} of {length}")


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _unsound(file: File, why: str) -> ValueError:
    return ValueError(f"{show(file.path)} must be a sound safetensors file; {why}. Download or copy it again.")


Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # dtype and shape of each tensor, by name
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def num_bytes(layout: Layout) -> int:
    """Return the number of bytes of all tensors together.

    >>> num_bytes({"a": (torch.bfloat16, (2, 3)), "b": (torch.float32, ())})
    16
    """
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())


def stream_tensors(
    path: Path,
    layout: Layout,
    tensors: Iterable[tuple[str, Tensor]],
    label: str,
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Replace `path` by `tensors`, of which one is in memory at a time.

    Args:
        path: A `.safetensors` file.
        layout: Dtype and shape of every tensor.
        tensors: Every tensor of the layout, in any order.
        label: Name of the failpoints.
        metadata: More entries of the header, beside the format.

    Raises:
        OSError: The disk is full or read-only.
        ValueError: A tensor is missing, or not as the layout says.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    begins, at = {}, 0
    for name in sorted(layout, key=lambda n: (-layout[n][0].itemsize, n)):  # wide ones first: all are aligned
        dtype, shape = layout[name]
        begins[name], end = at, at + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    left = set(layout)
    with replacing(path, label) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors:
            if name not in left or (tensor.dtype, tuple(tensor.shape)) != layout[name]:
                raise ValueError(f"A tensor must be as the layout says; {name!r} is {tensor.dtype} {tensor.shape}.")
            left.remove(name)
            file.seek(8 + len(text) + begins[name])
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if left:
            raise ValueError(f"Every tensor of the layout must be written; {sorted(left)[0]!r} is not.")
        file.flush()
