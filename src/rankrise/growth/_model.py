"""A PEFT model whose LoRA modules have empty slots, and the models that are refused."""

import warnings
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rankrise._arguments import as_count, check_choice
from rankrise._extras import require
from rankrise.growth._schedule import MODES, Mode
from rankrise.growth._slots import Slots

PREFIX = "base_model.model."
NUM_PROBES = 4  # slots of every module that watch the gradient and never hold a direction
_SLOTS_PER_RANK, _MOST_SLOTS = 4, 64


@dataclass(frozen=True)
class Plan:
    """How a model of `growing_lora` is meant to grow."""

    rank: int
    mode: Mode
    over: float


_PLANS: "weakref.WeakKeyDictionary[nn.Module, Plan]" = weakref.WeakKeyDictionary()


def growing_lora(
    base: nn.Module,
    *,
    rank: int = 8,
    mode: Mode = "both",
    over: float = 2.0,
    cap: int | None = None,
    target_modules: str | Sequence[str] = "all-linear",
    **config: Any,
) -> Any:
    """Give a model a LoRA of PEFT whose modules have empty slots, for `Growth` or `GrowthCallback` to fill.

    The result is a `PeftModel` like any other: its shapes never change, and an empty slot has zero gradient. What it
    costs is memory and products for `cap` directions where `rank` on average will be kept: with Adam 16 bytes for each
    of the `cap (in + out)` numbers of a module in float32.

    Args:
        base: The model to fine-tune.
        rank: Average rank of the result: it has at most as many parameters as a LoRA of this rank everywhere.
        mode: "both" begins as a LoRA of this rank, grows where the gradient asks for it to `over` times the
            parameters, and is cut back; "grow" does so from no direction at all; "early" grows from no direction to
            `rank` and is not cut; "cut" begins at `over` times the rank and is cut.
        over: The most parameters before the cut, as a multiple of the final ones.
        cap: Number of slots of each module, of which four watch the gradient; by default 4 `rank`, at most 64, and
            four more.
        target_modules: The modules to adapt, as `peft.LoraConfig` takes them.
        config: More arguments of `peft.LoraConfig`.

    Raises:
        ValueError: A value is out of its range, or an option would rescale directions or change the base.
        ImportError: peft is not installed.

    >>> import torch
    >>> model = growing_lora(torch.nn.Sequential(torch.nn.Linear(16, 16)), rank=2, target_modules=["0"])
    >>> model.base_model.model[0].lora_A["default"].weight.shape
    torch.Size([12, 16])
    """
    require("Growing an adapter", "peft")
    import peft

    rank = as_count(rank, "rank", least=1)
    check_choice("mode", mode, MODES)
    start = {"both": rank, "cut": round(rank * over)}.get(mode, 0)
    cap = max(min(_SLOTS_PER_RANK * rank, _MOST_SLOTS), start) + NUM_PROBES if cap is None else as_count(cap, "cap")
    if over < 1:
        raise ValueError(f"`over` must be at least 1; got {over:g}.")
    if cap - NUM_PROBES < max(start, rank):
        raise ValueError(f"`cap` must be at least {max(start, rank) + NUM_PROBES} here; got {cap}.")
    taken = {"r", "lora_alpha", "rank_pattern", "alpha_pattern", "init_lora_weights", "target_parameters"} & set(config)
    if taken:
        raise ValueError(f"`{min(taken)}` is chosen by the growth; leave it out.")
    _refuse_options(config)
    targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    model = peft.get_peft_model(base, peft.LoraConfig(r=cap, lora_alpha=cap, target_modules=targets, **config))
    for slots in find_slots(model):
        slots.empty_all_but(start)
        slots.fill_probe(None, None)
    _PLANS[model] = Plan(rank, mode, float(over))
    return model


def plan_of(model: nn.Module) -> Plan:
    """Return how a model is meant to grow.

    Raises:
        ValueError: The model was not made by `growing_lora`.
    """
    plan = _PLANS.get(unwrapped(model))
    if plan is None:
        raise ValueError("`model` must be what `growing_lora` returned, in this process; it is not.")
    return plan


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP and `torch.compile`."""
    while True:
        inner = model._modules.get("_orig_mod", model._modules.get("module"))
        if inner is None or not (hasattr(model, "_orig_mod") or type(model).__name__ == "DistributedDataParallel"):
            return model
        model = inner


def find_slots(model: nn.Module) -> list[Slots]:
    """Return the slots of every LoRA module; a slot with a row in A or a column in B that is not zero is live."""
    found = []
    for name, module in unwrapped(model).named_modules():
        factors = getattr(module, "lora_A", None), getattr(module, "lora_B", None)
        if not all(isinstance(part, nn.ModuleDict) and len(part) for part in factors):
            continue
        a, b = (next(iter(part.values())).weight for part in factors)  # type: ignore[union-attr]
        if a.ndim == 2 and b.ndim == 2:
            used = (a.detach().abs().sum(1) + b.detach().abs().sum(0))[:-NUM_PROBES] > 0
            found.append(Slots(name.removeprefix(PREFIX), a, b, NUM_PROBES, used.tolist()))
    return found


def check_model(model: nn.Module, slots: Iterable[Slots]) -> int:
    """Refuse a model whose adapter cannot grow; return the number of processes that train it.

    Raises:
        ValueError: The model has no LoRA, its LoRA is not plain, or its parameters are sharded.
    """
    slots = list(slots)
    if not slots:
        raise ValueError("`model` must have LoRA modules on linear layers; it has none. Use `growing_lora`.")
    kinds = {type(module).__name__ for module in model.modules()}
    if "FullyShardedDataParallel" in kinds or any(type(s.a.data).__name__ == "DTensor" for s in slots):
        raise ValueError("A growing adapter needs whole parameters; FSDP shards them. Use DDP.")
    if any(hasattr(s.a, "ds_id") for s in slots):
        raise ValueError("A growing adapter needs whole parameters; ZeRO-3 shards them. Use ZeRO-1, ZeRO-2 or DDP.")
    for config in getattr(unwrapped(model), "peft_config", {}).values():
        _refuse_options(vars(config))
        if config.lora_alpha != config.r:
            raise ValueError(f"`lora_alpha` must be `r`, so that growth rescales nothing; got {config.lora_alpha}.")
    dist = torch.distributed
    return int(dist.get_world_size()) if dist.is_available() and dist.is_initialized() else 1


def _refuse_options(config: dict[str, Any]) -> None:
    if config.get("use_dora"):
        raise ValueError("A growing adapter must be a plain LoRA; DoRA normalises its weights. Leave `use_dora` out.")
    if config.get("use_rslora"):
        raise ValueError("A growing adapter must have scale 1 at every rank; leave `use_rslora` out.")
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        raise ValueError("A growing adapter has no biases; leave `bias` and `lora_bias` out.")
    if config.get("lora_dropout"):
        warnings.warn(
            "Dropout also acts on what the probe sees, so that signals are those of thinned inputs.", stacklevel=4
        )
