"""Read a pickle that may hold nothing but dictionaries, lists, numbers, strings and numpy arrays of bytes."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct
from numpy._core.numeric import _frombuffer  # type: ignore[attr-defined]


def _dtype(spec: str | bytes, align: object = False, copy: object = False) -> "np.dtype[Any]":
    """Only plain numbers; `align` and `copy` come as 0 and 1 from Python 2 and mean nothing for these."""
    name = spec.decode("ascii") if isinstance(spec, bytes) else spec
    if name not in ("u1", "i1", "i4", "i8", "uint8", "int64"):
        raise pickle.UnpicklingError(f"arrays of type {name!r} are not read")
    return np.dtype(name)


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text in {encoding!r} is not read")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _encode,
}


class _Refused(Exception):
    """A global that is not allowed."""


class _Unpickler(pickle._Unpickler):  # the one in C sets aside 64 GB when ten bytes ask for the last place of its memo
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _Refused(f"{module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("a persistent object")


def unpickle(content: bytes, path: Path) -> Any:
    """The object in `content`, the bytes of the file `path`.

    Raises:
        ValueError: It asks for anything but numpy arrays, or is cut off or damaged; names the file.
    """
    if not content.endswith(pickle.STOP):
        raise ValueError(f"{path} must be a whole pickle; it is truncated. Get it again.")
    try:
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused as refused:
        raise ValueError(
            f"{path} must hold nothing but numpy arrays, lists and strings; it asks for {refused}, which is refused: "
            "a pickle can run any program. Do not trust this file; get the official one."
        ) from None
    except Exception as error:  # a damaged pickle fails in as many ways as there are opcodes
        raise ValueError(
            f"{path} must be a whole pickle; it is truncated or damaged ({error}). Get it again."
        ) from error
