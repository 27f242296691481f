"""The parameters of a model in training: read them, keep what they were, notice when the model is rebuilt.

Sharded parameters (FSDP2, tensor parallel) are gathered one at a time by `full_tensor`. This is a collective: every
process calls it for the same names in the same order, and the main process keeps the result.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rankrise.heads import canonical_names, named_weights, read_weight

Place = Literal["auto", "device", "cpu", "disk"]
_PLACES = get_args(Place)
_AUTO_BYTES = 2**28  # with `auto`, initial weights up to this size stay on the device of the model


def is_main_process() -> bool:
    """Whether this process measures and writes: rank 0, or the only one."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def names_of(model: nn.Module) -> dict[str, str]:
    """Map the name of every weight to its name without wrappers, under which it is stored."""
    return canonical_names(name for name, _ in named_weights(model))


def is_sharded(model: nn.Module) -> bool:
    """Whether reading a weight is a collective."""
    return any(hasattr(p, "full_tensor") for p in model.parameters())


def check_place(place: str) -> None:
    """Refuse an unknown place.

    >>> check_place("disk")
    """
    if place not in _PLACES:
        raise ValueError(f"`initial` must be one of {', '.join(_PLACES)}; got {place!r}.")


def refuse_partitioned(model: nn.Module) -> None:
    """Refuse models whose parameters are partitioned in a way that hides their shapes.

    Raises:
        ValueError: The model is partitioned by DeepSpeed ZeRO-3 or FSDP1.
    """
    if any(hasattr(p, "ds_id") and p.numel() == 0 for p in model.parameters()):
        name, instead = "DeepSpeed ZeRO-3", "FSDP2 (`fully_shard`) or ZeRO-2"
    elif any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules()):
        name, instead = "FSDP1", "FSDP2 (`fully_shard`)"
    else:
        return
    raise ValueError(f"Weights must be whole, or sharded by DTensor; {name} hides their shapes. Use {instead}.")


Signature = tuple[tuple[object, ...], ...]
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))  # attributes that say nothing about heads


def signature(model: nn.Module, names: Iterable[str]) -> Signature:
    """What the heads of a model depend on; as long as the signature stays, the model need not be resolved again.

    It has names and shapes of all parameters, and the plain attributes (`num_heads`, PEFT's `scaling`, …) of the
    modules that hold the parameters in `names` and of the two modules around each.
    """
    parameters = tuple((name, tuple(p.shape)) for name, p in model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules(remove_duplicate=False))
    paths = dict.fromkeys(path for name in names for path in _around(name))
    settings = tuple(
        (path, type(modules[path]), *_plain_attributes(modules[path])) for path in paths if path in modules
    )
    return (*parameters, *settings)


def _around(name: str) -> Iterator[str]:
    """Paths of the module that holds a parameter and of the two around it; with PEFT, the third is the attention."""
    for _ in range(3):
        name, _, _ = name.rpartition(".")
        yield name
        if not name:
            return


def _plain_attributes(module: nn.Module) -> Iterator[tuple[str, str]]:
    for name, value in vars(module).items():
        if name not in _OF_EVERY_MODULE and _is_plain(value):
            yield name, repr(value)


def _is_plain(value: object) -> bool:
    """Whether a value is a number, text, or a collection of these."""
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def read_weights(model: nn.Module, names: Iterable[str], *, keep: bool = True) -> dict[str, Tensor]:
    """Return whole weights by name, as they are now. Only weights that had to be gathered or computed are copies.

    Args:
        model: The model in training.
        names: Names as in `rankrise.heads.named_weights`; the same in every process.
        keep: Whether this process wants the weights. If not, it only takes part in gathering and gets nothing.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    weights = {}
    for name in names:
        whole = parameters[name].detach() if name in parameters else read_weight(model, name)
        if hasattr(whole, "full_tensor"):
            whole = whole.full_tensor()
        if keep:
            weights[name] = whole
    return weights


def copy_in_float32(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that training does not change, in float32 (float64 stays), under the same names.

    Raises:
        ValueError: A weight is not finite, or is on the meta device.
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
        """Weights now and at the start by their names now, in one dtype and on the device of the weights now.

        Both are on the CPU if the device has no float64 (MPS).
        """
        now = {name: weight.cpu() if weight.is_mps else weight for name, weight in now.items()}
        start = {name: self._read(self._names[name], weight.device) for name, weight in now.items()}
        return {name: weight.to(start[name].dtype) for name, weight in now.items()}, start

    def differs(self, now: Mapping[str, Tensor]) -> bool:
        """Whether any weight differs from what it was at the start."""
        for name, weight in now.items():
            start = self._read(self._names[name], weight.device)
            if not torch.equal(weight.to(start.dtype), start):
                return True
        return False

    def _resolved(self, place: Place, path: Path | None) -> Place:
        if place == "auto":
            return "device" if self.num_bytes <= _AUTO_BYTES else "cpu"
        return "cpu" if place == "disk" and path is None else place  # there is no file if the disk refused it

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
