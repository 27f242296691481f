"""What `open_checkpoint` returns: names and shapes in memory, values on disk until they are asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rankrise.checkpoints._adapters import LowRankDelta
from rankrise.checkpoints._folders import show
from rankrise.checkpoints._quantised import Scale
from rankrise.checkpoints._safetensors import TensorInfo


class Part(Protocol):
    """One file of a checkpoint."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What it holds."""

    def read(self, name: str) -> Tensor:
        """The whole tensor, as stored."""

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Some of its rows, as stored."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint on disk; nothing of it is held in memory but names, shapes and its config.

    `kind` is "safetensors", "sharded", "peft", "mlx" or "torch". Of an adapter, `deltas` says what it adds to which
    weight, and `tensors` still lists what its file holds.
    """

    path: Path
    kind: str
    config: Mapping[str, Any] | None  # config.json or adapter_config.json
    tensors: Mapping[str, TensorInfo]
    parts: Mapping[str, Part] = field(repr=False)  # by tensor
    deltas: Mapping[str, LowRankDelta] = field(default_factory=dict)  # by weight
    scales: Mapping[str, Scale] = field(default_factory=dict)  # by weight
    identities: tuple[tuple[int, int], ...] = ()  # of the files the tensors are in
    notes: tuple[str, ...] = ()

    @property
    def is_adapter(self) -> bool:
        """Whether it holds changes of weights and not the weights."""
        return self.kind in ("peft", "mlx")

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
