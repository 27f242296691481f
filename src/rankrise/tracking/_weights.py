"""Read the weights of a model that trains, and keep those it began with.

Sharded parameters (FSDP2, tensor parallel) are gathered one at a time by `full_tensor`, a collective: every process
calls it for the same names in the same order, and the main one keeps what comes.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rankrise.heads import canonical_names

Place = Literal["auto", "device", "cpu", "disk"]
_PLACES = get_args(Place)
_AUTO_BYTES = 2**28  # up to this many the initial weights stay on the device of the model


def is_main_process() -> bool:
    """Whether this process measures and writes: rank 0, or the only one."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def names_of(model: nn.Module) -> dict[str, str]:
    """From every parameter's name to the one without wrappers, under which it is stored."""
    return canonical_names(name for name, _ in model.named_parameters(remove_duplicate=False))


def is_sharded(model: nn.Module) -> bool:
    """Whether reading a weight is a collective."""
    return any(hasattr(p, "full_tensor") for p in model.parameters())


def check_place(place: str) -> None:
    """Refuse a place that is none.

    >>> check_place("disk")
    """
    if place not in _PLACES:
        raise ValueError(f"`initial` must be one of {', '.join(_PLACES)}; got {place!r}.")


def refuse_partitioned(model: nn.Module) -> None:
    """Refuse models whose parameters are cut up in a way that hides their shapes.

    Raises:
        ValueError: DeepSpeed ZeRO-3, or FSDP1.
    """
    if any(hasattr(p, "ds_id") and p.numel() == 0 for p in model.parameters()):
        name, instead = "DeepSpeed ZeRO-3", "FSDP2 (`fully_shard`) or ZeRO-2"
    elif any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()):
        name, instead = "FSDP1", "FSDP2 (`fully_shard`)"
    else:
        return
    raise ValueError(f"Weights must be whole, or sharded by DTensor; {name} hides their shapes. Use {instead}.")


def shapes_of(model: nn.Module, names: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    """Shapes of parameters by name; None for one that is gone."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {name: tuple(parameters[name].shape) if name in parameters else None for name in names}


def read_weights(model: nn.Module, names: Iterable[str], *, keep: bool = True) -> dict[str, Tensor]:
    """Whole weights by name, as they are now: not copied unless they had to be gathered.

    Args:
        model: In training.
        names: As in `model.named_parameters()`; the same in every process.
        keep: Whether this process wants them; if not it only takes part in gathering, and gets nothing.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    weights = {}
    for name in names:
        weight = parameters[name].detach()
        if hasattr(weight, "full_tensor"):
            weight = weight.full_tensor()
        if keep:
            weights[name] = weight
    return weights


def copy_in_float32(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that training cannot reach, in float32 (float64 stays), under the same names.

    Raises:
        ValueError: A weight that is not finite, or has no data yet.
    """
    copies = {}
    for name, weight in weights.items():
        if weight.is_meta:
            raise ValueError(f"{name!r} must hold numbers; it is on the meta device. Build the tracker after loading.")
        if not weight.isfinite().all():
            raise ValueError(
                f"{name!r} must be finite before the first step; got NaN or infinity. Initialise it first."
            )
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        copies[name] = weight.to(dtype, copy=True).contiguous()
    return copies


class InitialWeights:
    """The weights before the first step: on the device of the model, in the memory of the CPU, or left on disk."""

    def __init__(
        self, weights: Mapping[str, Tensor], place: Place, path: Path | None, names: Mapping[str, str]
    ) -> None:
        """Keep `weights` at `place`; `path` is the file that holds them, if there is one.

        `names` leads from the names in the model to those of `weights`, see `names_of`.
        """
        self._names = names
        self.num_bytes = sum(w.nbytes for w in weights.values())
        self.place = self._resolved(place, path)
        self._path = path
        self._kept = {} if self.place == "disk" else {k: self._put(w) for k, w in weights.items()}

    def pair(self, now: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights now and at the start, by their names now, in one dtype and on the device of those now.

        On the CPU if that device has no float64 (MPS).
        """
        now = {name: weight.cpu() if weight.is_mps else weight for name, weight in now.items()}
        start = {name: self._read(self._names[name], weight.device) for name, weight in now.items()}
        return {name: weight.to(start[name].dtype) for name, weight in now.items()}, start

    def _resolved(self, place: Place, path: Path | None) -> Place:
        if place == "auto":
            return "device" if self.num_bytes <= _AUTO_BYTES else "cpu"
        return "cpu" if place == "disk" and path is None else place  # no file: the disk refused it

    def _put(self, weight: Tensor) -> Tensor:
        return weight if self.place == "device" else weight.cpu()

    def _read(self, name: str, device: torch.device) -> Tensor:
        if self.place == "disk":
            from safetensors import safe_open

            with safe_open(str(self._path), framework="pt") as file:
                weight: Tensor = file.get_tensor(name)
            return weight.to(device)
        if self.place == "device":
            self._kept[name] = self._kept[name].to(device)  # the model may have moved
        return self._kept[name].to(device)
