"""Open a path as a `Checkpoint`, whatever its layout: names and shapes in memory, values on disk until asked for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rankrise.checkpoints.files._adapter_files import LowRankDelta, is_mlx, mlx_deltas, peft_deltas
from rankrise.checkpoints.files._folders import File, find_file, find_inside, has_file, read_json, show
from rankrise.checkpoints.files._hub import local_path
from rankrise.checkpoints.files._image_adapters import image_deltas, image_kind
from rankrise.checkpoints.files._quantised import WeightScale, find_scales
from rankrise.checkpoints.files._safetensors import SafetensorsFile, TensorInfo, open_safetensors
from rankrise.checkpoints.files._torch_files import TORCH_SUFFIXES, file_format, is_weights, open_torch


class Part(Protocol):
    """One file of a checkpoint."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Return what the file holds, by name."""

    def read(self, name: str) -> Tensor:
        """Return a whole tensor, as stored."""

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Return some rows of a tensor, as stored."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint on disk; nothing of it is held in memory but names, shapes and its config.

    `kind` is "safetensors", "sharded" or "torch", and of an adapter "peft", "mlx", "kohya" or "diffusers". Of an
    adapter, `deltas` says what it adds to which weight, and `tensors` still lists what its file holds.
    """

    path: Path
    kind: str
    config: Mapping[str, Any] | None  # config.json or adapter_config.json
    tensors: Mapping[str, TensorInfo] = field(repr=False)
    parts: Mapping[str, Part] = field(repr=False)  # by tensor
    deltas: Mapping[str, LowRankDelta] = field(default_factory=dict, repr=False)  # by weight
    scales: Mapping[str, WeightScale] = field(default_factory=dict, repr=False)  # by weight
    identities: tuple[tuple[int, int], ...] = ()  # device and inode of the files that hold the tensors
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)  # header of a lone safetensors file

    @property
    def is_adapter(self) -> bool:
        """Whether it holds changes of weights and not the weights."""
        return self.kind in ("peft", "mlx", "kohya", "diffusers")

    def read(self, name: str) -> Tensor:
        """A whole tensor on the CPU in the dtype it is stored in.

        Raises:
            ValueError: No such tensor, or the file has changed since it was opened.
        """
        return self._part(name).read(name)

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Rows `begin` to `end` of a tensor on the CPU in the dtype it is stored in; nothing else is read.

        Raises:
            ValueError: As `read`, or rows that the tensor does not have.
        """
        part, shape = self._part(name), self.tensors[name].shape
        if not shape or not 0 <= begin <= end <= shape[0]:
            raise ValueError(f"Rows of {show(name)!r} must lie in its shape {shape}; got {begin} to {end}.")
        return part.read_rows(name, begin, end)

    def read_weight(self, name: str, begin: int = 0, end: int | None = None) -> Tensor:
        """Rows of a matrix as the model uses them: as stored, but with scales applied and 8-bit floats as float32."""
        stored = self.read_rows(name, begin, self.tensors[name].shape[0] if end is None else end)
        scale = self.scales.get(name)
        if scale is not None:
            return scale.apply(stored, self.read(scale.name), begin)
        return stored.to(torch.float32) if stored.dtype.itemsize == 1 else stored

    def _part(self, name: str) -> Part:
        if name not in self.parts:
            raise ValueError(f"{show(self.path)} has no tensor {show(name)!r}.")
        return self.parts[name]


_SHARD = re.compile(r"[A-Za-z0-9._-]+\.(safetensors|bin)")
_INDICES = ("model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json")
_TORCH_INDEX = "pytorch_model.bin.index.json"
_SINGLE = (
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "adapter_model.safetensors",
    "adapters.safetensors",
)
_NAMES = "model.safetensors, a shard index, adapter_model.safetensors or adapters.safetensors"


def open_checkpoint(path: str | PathLike[str], *, allow_torch_load: bool = False) -> Checkpoint:
    """Open a checkpoint without reading its weights.

    Understood are a safetensors file; a folder with one, with shards and their index, or with a PEFT or MLX adapter,
    which is also what the Trainer's `checkpoint-N` folders hold; and files of `torch.save` where they are allowed.
    Everything a file says is checked before it is believed, and nothing outside a folder is read.

    Args:
        path: A file, a folder, or `owner/name@revision` on the Hugging Face hub.
        allow_torch_load: Read `.pt`, `.pth`, `.bin` and `.ckpt` with `weights_only=True`.

    Raises:
        FileNotFoundError: Nothing there.
        ValueError: Not understood, damaged, quantised in a way that is not exact, or a pickle that is not allowed.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"w": torch.eye(3)}, f"{folder}/model.safetensors")
    ...     checkpoint = open_checkpoint(folder)
    ...     checkpoint.kind, checkpoint.tensors["w"].shape, checkpoint.read_rows("w", 1, 2).tolist()
    ('safetensors', (3, 3), [[0.0, 1.0, 0.0]])
    """
    path = local_path(path, allow_torch_load=allow_torch_load)
    return _open_folder(path, allow_torch_load) if path.is_dir() else _open_file(path, allow_torch_load)


def _open_file(path: Path, allowed: bool) -> Checkpoint:
    file = find_file(path)
    if path.name.endswith(".safetensors.index.json"):
        return _open_sharded(path.parent, path.name, allowed)
    found = "safetensors" if path.name.endswith(".safetensors") else file_format(file)
    if found == "safetensors":
        return _safetensors(path, file, path.parent)
    if found == "torch" or path.name.endswith(TORCH_SUFFIXES):
        return _whole(path, "torch", open_torch(file, allowed=allowed), file, _config(path.parent))
    raise ValueError(
        f"{show(path)} must be a folder, a .safetensors file or, where allowed, a file of torch.save; by its first "
        "bytes it is none of these. Name the file with the weights."
    )


def _open_folder(folder: Path, allowed: bool) -> Checkpoint:
    for name in _INDICES:
        if has_file(folder, name):
            return _open_sharded(folder, name, allowed)
    for name in _SINGLE:
        if has_file(folder, name):
            return _safetensors(folder, find_inside(folder, name), folder)
    found = sorted(entry.name for entry in folder.iterdir())
    several = [name for name in found if name.endswith(".safetensors")]
    if len(several) == 1:
        return _safetensors(folder, find_inside(folder, several[0]), folder)
    if several:
        raise ValueError(f"{show(folder)} holds {len(several)} safetensors files and no index; name one of them: "
                         f"{', '.join(map(show, several[:4]))}{' …' if len(several) > 4 else ''}.")  # fmt: skip
    if _TORCH_INDEX in found:
        return _open_sharded(folder, _TORCH_INDEX, allowed)
    pickles = [name for name in found if name.endswith(TORCH_SUFFIXES) and is_weights(folder / name)]
    if len(pickles) == 1:
        file = find_inside(folder, pickles[0])
        return _whole(folder, "torch", open_torch(file, allowed=allowed), file, _config(folder))
    inside = [name for name in found if re.search(r"\d", name)] or found
    held = f"it holds {', '.join(map(show, inside[:4]))}{' …' if len(inside) > 4 else ''}" if found else "it is empty"
    raise ValueError(f"{show(folder)} must hold {_NAMES}; {held}. Name one checkpoint.")


def _safetensors(path: Path, file: File, folder: Path) -> Checkpoint:
    """A safetensors file, which may be an adapter by its names and the config beside it."""
    part = open_safetensors(file)
    adapter = read_json(find_inside(folder, "adapter_config.json")) if has_file(folder, "adapter_config.json") else None
    if is_mlx(part.tensors):
        return _adapter(path, "mlx", part, file, adapter, mlx_deltas)
    wrapped = next((name for name in part.tensors if ".base_layer." in name), None)
    if wrapped is not None and adapter is None:  # PEFT saves some beside an adapter: of embeddings, biases
        raise ValueError(
            f"{show(path)} must hold weights or an adapter; it holds both ({show(wrapped)!r}). Merge the adapter first."
        )
    kind = image_kind(part.tensors) if adapter is None else None
    if kind is not None:
        return _image_adapter(path, kind, part, file)
    if any(".lora_" in name for name in part.tensors):
        return _adapter(path, "peft", part, file, adapter, peft_deltas)
    return _whole(path, "safetensors", part, file, _config(folder))


def _adapter(path: Path, kind: str, part: Part, file: File, config: dict[str, Any] | None, deltas: Any) -> Checkpoint:
    if config is None:
        raise ValueError(
            f"{show(path)} holds a LoRA adapter, whose scale only an adapter_config.json knows; put it beside the file."
        )
    return _of_file(path, kind, part, file, config=config, deltas=deltas(part.tensors, config))


def _image_adapter(path: Path, kind: str, part: SafetensorsFile, file: File) -> Checkpoint:
    deltas, notes = image_deltas(part.tensors, part.metadata, part.read)
    return _of_file(path, kind, part, file, config=None, deltas=deltas, notes=notes, metadata=part.metadata)


def _whole(path: Path, kind: str, part: Part, file: File, config: dict[str, Any] | None) -> Checkpoint:
    return _of_file(path, kind, part, file, config=config, scales=find_scales(part.tensors, config))


def _of_file(path: Path, kind: str, part: Part, file: File, **fields: Any) -> Checkpoint:
    parts = dict.fromkeys(part.tensors, part)
    return Checkpoint(path=path, kind=kind, tensors=part.tensors, parts=parts, identities=(file.identity,), **fields)


def _open_sharded(folder: Path, index_name: str, allowed: bool) -> Checkpoint:
    index_path = folder / index_name
    index = read_json(find_inside(folder, index_name))
    files = _weight_map(index_path, index)
    parts: dict[str, Part] = {}
    identities = []
    for name in dict.fromkeys(files.values()):
        file = find_inside(folder, name)
        identities.append(file.identity)
        parts[name] = open_safetensors(file) if name.endswith(".safetensors") else open_torch(file, allowed=allowed)
    tensors: dict[str, TensorInfo] = {}
    for tensor, name in files.items():
        if tensor not in parts[name].tensors:
            raise ValueError(
                f"{show(index_path)} must tell where tensors are; {show(tensor)!r} is not in {name}. Download it again."
            )
        tensors[tensor] = parts[name].tensors[tensor]
    config = _config(folder)
    return Checkpoint(
        path=folder,
        kind="sharded" if index_name != _TORCH_INDEX else "torch",
        config=config,
        tensors=tensors,
        parts={tensor: parts[name] for tensor, name in files.items()},
        scales=find_scales(tensors, config),
        identities=tuple(identities),
        notes=(*_unlisted(parts, files), *_size_note(index, tensors)),
    )


def _weight_map(path: Path, index: dict[str, Any]) -> dict[str, str]:
    files = index.get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{show(path)} must have a weight_map; it has none. Download it again.")
    for tensor, name in files.items():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise ValueError(
                f"{show(path)} must name files of its own folder; for {show(tensor)!r} it names {show(name)!r}. "
                "It was not read."
            )
    return files


def _unlisted(parts: Mapping[str, Part], files: Mapping[str, str]) -> tuple[str, ...]:
    extra = [tensor for part in parts.values() for tensor in part.tensors if tensor not in files]
    if not extra:
        return ()
    return (f"{len(extra)} tensors of the shards are not in the index and are left out, such as {show(extra[0])!r}",)


def _size_note(index: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    total = sum(info.num_bytes for info in tensors.values())
    if not isinstance(stated, int | float) or stated == total:
        return ()
    said = f"{stated:.4g}" if abs(stated) < 1e18 else "a false number of"
    return (f"the index states {said} bytes and the tensors have {total:.4g}",)


def _config(folder: Path) -> dict[str, Any] | None:
    return read_json(find_inside(folder, "config.json")) if has_file(folder, "config.json") else None
