"""A safetensors file written one tensor at a time: first the header, from shapes alone, then each in its place."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from rankrise.checkpoints._safetensors import DTYPES
from rankrise.store import replacing

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # of each tensor, by name
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def num_bytes(layout: Layout) -> int:
    """Of all tensors together.

    >>> num_bytes({"a": (torch.bfloat16, (2, 3)), "b": (torch.float32, ())})
    16
    """
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())


def stream_tensors(path: Path, layout: Layout, tensors: Iterable[tuple[str, Tensor]], label: str) -> None:
    """Replace `path` by `tensors`, of which one is in memory at a time.

    Args:
        path: A `.safetensors` file.
        layout: Dtype and shape of every tensor.
        tensors: Every tensor of the layout, in any order.
        label: Name of the failpoints.

    Raises:
        OSError: The disk is full or read-only.
        ValueError: A tensor is missing, or not as the layout says.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
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
