"""What the pickle inside a file of `torch.save` says of tensors: where each lies in which storage, and no values.

Nothing that a pickle names is looked up or called. The names that `torch.save` writes for tensors stand for functions
of this file, the names of harmless values (sets, devices) stand for nothing, and any other name is refused.
"""

import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO

import torch

_MOST_OPERATIONS = 2_000_000  # a tensor takes about 40
_MOST_DIMENSIONS = 64
_OPCODES = (  # those of protocol 2, which `torch.save` writes, without the ones that make objects of classes
    pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.REDUCE, pickle.BUILD, pickle.BINPERSID,
    pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1,
    pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINSTRING, pickle.EMPTY_TUPLE, pickle.EMPTY_LIST,
    pickle.EMPTY_DICT, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS,
    pickle.SETITEM, pickle.SETITEMS, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET,
)  # fmt: skip
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "QInt8Storage": torch.int8,
    "QUInt8Storage": torch.uint8,
    "QInt32Storage": torch.int32,
    "UntypedStorage": torch.uint8,
}


@dataclass(frozen=True)
class Storage:
    """Numbers in a row, as the pickle names them."""

    key: str
    dtype: torch.dtype
    num_elements: int

    @property
    def num_bytes(self) -> int:
        """Bytes that the file must hold for it."""
        return self.num_elements * self.dtype.itemsize


@dataclass(frozen=True)
class Strided:
    """A tensor: which elements of a storage it consists of, in units of its own dtype."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    def rows(self, begin: int, end: int) -> "Strided":
        """Some of its rows."""
        offset = self.offset + begin * self.stride[0]
        return Strided(self.storage, self.dtype, offset, (end - begin, *self.shape[1:]), self.stride)

    def span(self) -> int:
        """How many elements lie from its first one to its last one."""
        if not self.num_elements:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))


class NotPlain:
    """A tensor that is sparse, quantised, nested, a view of conjugates, or without values."""


class Refused(ValueError):
    """The pickle asks for something that no state dict needs; the message names it."""


def read_pickle(stream: BinaryIO) -> tuple[Any, dict[str, Storage]]:
    """The object of the pickle that begins at the place of a stream, and the storages that it names.

    Tensors in the object are `Strided` or `NotPlain`.

    Raises:
        Refused: It holds more than tensors and plain values.
        Exception: It is damaged; pickles raise exceptions of many kinds.
    """
    unpickler = _Unpickler(stream)
    return unpickler.load(), unpickler.storages


# The unpickler written in C allocates 64 GB when ten bytes ask for the last place of its memo; this one does not.
class _Unpickler(pickle._Unpickler):
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.storages: dict[str, Storage] = {}
        operations = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _OPCODES}
        self.dispatch = _Counted(operations)  # type: ignore[misc]
        self.dispatch[pickle.BUILD[0]] = _Unpickler._drop_state
        self.dispatch[pickle.SETITEM[0]] = _Unpickler._set_item
        self.dispatch[pickle.SETITEMS[0]] = _Unpickler._set_items

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) not in _NAMES:
            raise Refused(f"it asks for {module}.{name}")
        return _NAMES[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        kind, dtype, key, _, num_elements, *view = pid
        if kind not in ("storage", b"storage") or not isinstance(dtype, torch.dtype) or any(view):
            raise Refused("it asks for a persistent object that is no storage")
        if type(key) is not str or not _are_counts((num_elements,)):
            raise Refused("a storage has no name or no size")
        storage = Storage(key, dtype, num_elements)
        if self.storages.setdefault(key, storage) != storage:
            raise Refused("a storage has two sizes or types")
        return storage

    def _drop_state(self) -> None:
        """State is attributes of dictionaries and of tensors, and no weight."""
        self.stack.pop()  # type: ignore[attr-defined]

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self.stack[-1][_checked_key(key)] = value  # type: ignore[attr-defined]

    def _set_items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][_checked_key(key)] = value  # type: ignore[attr-defined]


class _Counted(dict[int, Callable[[Any], None]]):
    """The operations that are allowed; looks up a bounded number of them, because each takes time and memory."""

    num_done = 0

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.num_done += 1
        if self.num_done > _MOST_OPERATIONS:
            raise Refused(f"it takes more than {_MOST_OPERATIONS} operations to read")
        return super().__getitem__(code)

    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise Refused(f"its operation {code} is none of pickle protocol 2")


def _checked_key(key: object) -> object:
    """Refuse a key whose hash can take forever: a tuple of tuples of tuples."""
    if not isinstance(key, str | bytes | int | float | type(None) | torch.dtype):
        raise Refused(f"a key is a {type(key).__name__}")
    return key


def _nothing(*_: object) -> None:
    """Stands for a value that is no tensor."""


def _not_plain(*_: object) -> NotPlain:
    return NotPlain()


def _dictionary(*arguments: object) -> dict[Any, Any]:
    if arguments:
        raise Refused("a dictionary is made of other values")
    return {}


def _tensor(storage: object, offset: object, shape: object, stride: object, *rest: object) -> Strided | NotPlain:
    dtype = storage.dtype if isinstance(storage, Storage) else None
    return _strided(storage, dtype, offset, shape, stride, metadata=rest[2:])


def _untyped(storage: object, offset: object, shape: object, stride: object, *rest: object) -> Strided | NotPlain:
    return _strided(storage, rest[2], offset, shape, stride, metadata=rest[3:])


def _strided(
    storage: object, dtype: object, offset: object, shape: object, stride: object, *, metadata: tuple[object, ...]
) -> Strided | NotPlain:
    if any(metadata):
        return NotPlain()
    if not (
        isinstance(storage, Storage)
        and isinstance(dtype, torch.dtype)
        and isinstance(shape, tuple)
        and isinstance(stride, tuple)
        and len(shape) == len(stride) <= _MOST_DIMENSIONS
        and _are_counts((offset, *shape, *stride))
    ):
        raise Refused("a tensor has no storage, no shape, or strides of another kind")
    tensor = Strided(storage, dtype, offset, shape, stride)  # type: ignore[arg-type]
    if tensor.num_elements and (tensor.offset + tensor.span()) * dtype.itemsize > storage.num_bytes:
        raise Refused(f"a tensor of shape {shape!s:.80} reaches beyond its storage")
    return tensor


def _parameter(data: object, *_: object) -> object:
    return data


def _subclass(build: object, _: object, arguments: tuple[object, ...], *__: object) -> object:
    if build not in (_tensor, _untyped, _not_plain):
        raise Refused("a subclass of tensors is built in an unknown way")
    return build(*arguments)


def _are_counts(values: tuple[object, ...]) -> bool:
    return all(type(value) is int and 0 <= value < 2**63 for value in values)


def _names() -> Iterator[tuple[tuple[str, str], Callable[..., Any]]]:
    for name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
        yield ("torch._utils", name), _parameter
    yield ("torch._utils", "_rebuild_tensor_v2"), _tensor
    yield ("torch._utils", "_rebuild_tensor"), _tensor
    yield ("torch._utils", "_rebuild_tensor_v3"), _untyped
    for kind in ("sparse_tensor", "meta_tensor_no_storage", "nested_tensor", "qtensor", "wrapper_subclass"):
        yield ("torch._utils", f"_rebuild_{kind}"), _not_plain
    yield ("torch._tensor", "_rebuild_from_type_v2"), _subclass
    yield ("collections", "OrderedDict"), _dictionary
    for module, name in (
        ("collections", "Counter"), ("torch", "Size"), ("torch", "device"), ("torch", "Tensor"), ("_codecs", "encode"),
        ("torch.nn.parameter", "Parameter"), ("torch.serialization", "_get_layout"),
        ("torch", "per_tensor_affine"), ("torch", "per_channel_affine"), ("torch", "per_tensor_symmetric"),
        *((module, name) for module in ("builtins", "__builtin__") for name in ("set", "bytearray", "complex")),
    ):  # fmt: skip
        yield (module, name), _nothing


_NAMES = MappingProxyType(dict(_names()))
