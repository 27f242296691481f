"""A PEFT adapter on disk: `adapter_config.json`, `adapter_model.safetensors`, and `rankrise.json` with the evidence.

PEFT adds `(alpha / r) B A` with A (r, in) and B (out, r), also to a Conv1D, which stores (in, out). Here alpha is r
everywhere, in `alpha_pattern` as in `rank_pattern`: left out, PEFT would scale modules of another rank than `r` by
something else, and say nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints._advice import lora_arguments
from rankrise.checkpoints._folder import new_folder
from rankrise.checkpoints._folders import show
from rankrise.checkpoints._stream import Layout, num_bytes, stream_tensors
from rankrise.store import write_json

PREFIX = "base_model.model."
MODEL, CONFIG, REPORT = "adapter_model.safetensors", "adapter_config.json", "rankrise.json"


@dataclass(frozen=True, eq=False)
class AdapterModule:
    """One module: `B A` is added to its weight as a Linear has it, (out, in)."""

    name: str
    shape: tuple[int, int]  # out, in
    rank: int  # at least 1
    dtype: torch.dtype
    factors: Callable[[], tuple[Tensor, Tensor]]  # A (r, in) and B (out, r), made when they are written
    is_transposed: bool = False  # the weight is stored (in, out)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """A and B as they are written.

        Raises:
            ValueError: A number is not finite in this dtype.
        """
        a, b = (t.to("cpu", self.dtype) for t in padded(*self.factors(), self.rank))
        if not (a.isfinite().all() and b.isfinite().all()):
            raise ValueError(f"Factors must be finite; those of {show(self.name)!r} are not in {self.dtype}.")
        return a, b


@dataclass(frozen=True, eq=False)
class WholeTensor:
    """A tensor that is written as it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


@dataclass(frozen=True, eq=False)
class Adapter:
    """Everything that is written."""

    modules: Sequence[AdapterModule]
    saved: Mapping[str, WholeTensor] = field(default_factory=dict)  # by their name in memory
    saved_modules: Sequence[str] = ()
    base: str = ""
    task: str | None = None
    others: Sequence[str] = ()  # modules that must not be adapted
    base_config: Mapping[str, Any] = field(default_factory=dict)  # entries of another config to keep

    @property
    def num_bytes(self) -> int:
        """Of the tensors."""
        return num_bytes(self.layout())

    def config(self) -> dict[str, Any]:
        """`adapter_config.json`."""
        transposed = sum(module.is_transposed for module in self.modules)
        return {
            "peft_type": "LORA",
            "task_type": self.task,
            "base_model_name_or_path": self.base,
            **lora_arguments({module.name: module.rank for module in self.modules}, self.others),
            "fan_in_fan_out": 2 * transposed > len(self.modules),  # PEFT corrects it for modules of the other kind
            "bias": "none",
            "lora_dropout": 0.0,
            "inference_mode": True,
            "init_lora_weights": True,
            "use_rslora": False,
            "modules_to_save": sorted(self.saved_modules) or None,
            **self.base_config,
        }

    def layout(self) -> Layout:
        """Names, dtypes and shapes in `adapter_model.safetensors`."""
        found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for module in self.modules:
            outputs, inputs = module.shape
            for letter, shape in (("A", (module.rank, inputs)), ("B", (outputs, module.rank))):
                found[f"{PREFIX}{module.name}.lora_{letter}.weight"] = module.dtype, shape
        return found | {f"{PREFIX}{name}": (whole.dtype, whole.shape) for name, whole in self.saved.items()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What the layout names, one module at a time."""
        for module in self.modules:
            for letter, tensor in zip("AB", module.tensors(), strict=True):
                yield f"{PREFIX}{module.name}.lora_{letter}.weight", tensor
        for name, whole in self.saved.items():
            yield f"{PREFIX}{name}", whole.read()


def write_adapter(out: Path, adapter: Adapter, check: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Write an adapter; `check` reads it back before it gets its name, and what it returns becomes `rankrise.json`.

    Raises:
        OSError: The disk is full or read-only; nothing is left.
        ValueError: Something is at `out` already; an adapter of nothing; a tensor that is not finite.
    """
    if not adapter.modules:
        raise ValueError(
            "An adapter must have modules; none has a change to write. The checkpoints may be equal, or differ "
            "only in what LoRA cannot carry."
        )
    for module in adapter.modules:
        assert module.rank > 0, module.name  # PEFT refuses rank 0
    with new_folder(out, adapter.num_bytes) as folder:
        stream_tensors(folder / MODEL, adapter.layout(), adapter.tensors(), "adapter_model")
        write_json(folder / CONFIG, adapter.config(), "adapter_config")
        report = check(folder)
        write_json(folder / REPORT, report, "adapter_report")
    return report


def padded(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The same product with more directions, of zeros: a snapped rank may exceed the directions there are."""
    more = rank - a.shape[0]
    if more <= 0:
        return a, b
    return torch.cat([a, a.new_zeros(more, a.shape[1])]), torch.cat([b, b.new_zeros(b.shape[0], more)], dim=1)
