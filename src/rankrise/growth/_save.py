"""The result on disk: a plain LoRA of PEFT without empty slots, and the decisions that made it."""

from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.checkpoints.files import find_inside, open_safetensors
from rankrise.checkpoints.lora import Adapter, AdapterModule, write_adapter
from rankrise.growth._growth import growth_of
from rankrise.growth._model import find_slots, unwrapped
from rankrise.growth._slots import Slots
from rankrise.store import write_json

HISTORY = "growth.json"


def save_adapter(model: nn.Module, out: str | PathLike[str]) -> dict[str, int]:
    """Write the adapter in the format of PEFT, without empty slots, and return the ranks by module.

    Every module has its own rank and scale 1; `r` is the largest rank, so that an engine that reads `r` alone reserves
    enough room. Modules of rank 0 are no targets. `growth.json` lists every decision with its reason.

    Args:
        model: What `growing_lora` returned, trained.
        out: A folder that does not exist or is empty.

    Raises:
        ValueError: No direction has learned anything, `out` is not an empty or new folder, or a number is not finite.
        OSError: The disk is full; nothing that was written is left behind.
    """
    inner: Any = unwrapped(model)
    config = next(iter(inner.peft_config.values()))
    used = {slots.name: (slots, _used(slots)) for slots in find_slots(inner)}
    ranks = {name: len(kept) for name, (_, kept) in used.items() if kept}
    if not ranks:
        raise ValueError("An adapter must have directions that learned something; all slots are empty. Train it first.")
    transposed = {name for name, module in inner.get_base_model().named_modules() if _is_conv1d(module)}
    modules = [
        AdapterModule(
            name,
            (slots.b.shape[0], slots.a.shape[1]),
            ranks[name],
            slots.a.dtype,
            _factors(slots, kept),
            is_transposed=name in transposed,
        )
        for name, (slots, kept) in used.items()
        if kept
    ]
    others = [name for name, module in inner.get_base_model().named_modules() if hasattr(module, "weight")]
    task = config.task_type
    adapter = Adapter(
        modules,
        base=config.base_model_name_or_path or "",
        task=getattr(task, "value", task),
        others=[name for name in others if name not in ranks],
        base_config={"revision": config.revision} if config.revision else {},
    )
    growth = growth_of(inner)

    def check(folder: Path) -> dict[str, Any]:
        file = open_safetensors(find_inside(folder, adapter.file_name))
        for module in adapter.modules:
            for name, tensor in zip(adapter.names(module.name), module.tensors(), strict=True):
                assert torch.equal(file.read(name), tensor), name
        decisions = [] if growth is None else [asdict(decision) for decision in growth.history]
        write_json(folder / HISTORY, {"ranks": ranks, "decisions": decisions}, "growth")
        return {"ranks": ranks, "parameters": sum(m.rank * sum(m.shape) for m in modules)}

    write_adapter(Path(out), adapter, check)
    return ranks


def _used(slots: Slots) -> list[int]:
    """Return the slots that add something to the output: neither their row nor their column is zero."""
    norms = slots.a.detach().norm(dim=1) * slots.b.detach().norm(dim=0)
    return [k for k in range(slots.num_slots) if float(norms[k]) > 0]


def _factors(slots: Slots, kept: list[int]) -> Any:
    def read() -> tuple[Tensor, Tensor]:
        return slots.a.detach()[kept].contiguous(), slots.b.detach()[:, kept].contiguous()

    return read


def _is_conv1d(module: nn.Module) -> bool:
    return type(getattr(module, "base_layer", module)).__name__ == "Conv1D"
