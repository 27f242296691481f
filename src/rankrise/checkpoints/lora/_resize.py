"""An adapter with other ranks: `scale · B A` decomposed from its factors, exactly, and cut.

Adapters of PEFT and MLX become one of PEFT; LoRA files of kohya and diffusers keep their format.
"""

import functools
import math
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from rankrise.checkpoints.delta import Decomposition, decompose_factors
from rankrise.checkpoints.files import Checkpoint, LowRankDelta, find_inside, open_checkpoint, open_safetensors, show
from rankrise.checkpoints.lora._advice import Advice, ModuleSpectrum, advise_by, check_any
from rankrise.checkpoints.lora._allocation import RankRule
from rankrise.checkpoints.lora._extract import Extraction
from rankrise.checkpoints.lora._image_writer import LoraFile
from rankrise.checkpoints.lora._peft_writer import (
    PREFIX,
    Adapter,
    AdapterModule,
    WholeTensor,
    check_place,
    write_adapter,
)
from rankrise.checkpoints.match import Preflight, match_checkpoints
from rankrise.store import environment

_KEPT = ("task_type", "base_model_name_or_path", "modules_to_save", "bias", "exclude_modules", "revision")


def resize_lora(
    adapter: str | PathLike[str],
    *,
    out: str | PathLike[str] | None = None,
    energy: float | None = None,
    error: float | None = None,
    rank: int | None = None,
    budget: int | None = None,
    snap: bool = False,
    dtype: torch.dtype | None = None,
) -> Extraction:
    """Write an adapter again with the ranks it needs; never with a higher one, unless `snap` pads it with zeros.

    Two thin QR and a small SVD in float64: exact, whatever the rank. Scales, also those of rsLoRA and `alpha_pattern`,
    go into the factors, so the new scale is 1: every alpha that is written is the new rank. Whole modules that were
    saved beside it are copied. A LoRA file of kohya or diffusers keeps its names, the rest of its metadata and its
    convolutions, which are decomposed as (out, in · height · width).

    Args:
        adapter: A folder of PEFT or MLX, or a LoRA file of kohya or diffusers; plain LoRA.
        out: Folder of the new one, new or empty; None for advice only.
        energy: Share that every module keeps; 0.95 if no rule is given.
        error: Relative error over all modules.
        rank: The same for all.
        budget: Parameters in all.
        snap: Ranks among 8, 16, 32, 64.
        dtype: Dtype of A and B; by default that of the adapter.

    Raises:
        ValueError: Not plain LoRA, a module that is not linear, an option out of range, `out` taken.
        OSError: The disk is full; nothing is left.
    """
    rule = RankRule.of(energy=energy, error=error, rank=rank, budget=budget, snap=snap)
    if out is not None:
        check_place(Path(out))
    source = open_checkpoint(adapter)
    if not source.is_adapter:
        raise ValueError(f"{show(source.path)} must be a LoRA adapter; it is a whole model. See `rankrise lora`.")
    preflight = match_checkpoints(None, source)
    preflight.check()
    names = {_module_name(delta): delta for delta in source.deltas.values()}
    parts = {name: _decompose(source, delta) for name, delta in names.items()}
    spectra = [_spectrum(name, parts[name]) for name in parts]
    advice = advise_by(rule, spectra)
    modules = [
        _module(parts[m.name], names[m.name], m.rank, dtype or _dtype(source, names[m.name]))
        for m in advice.modules
        if m.rank
    ]
    total = math.sqrt(sum(part.squared_norm for part in parts.values()))
    used = {tensor for delta in source.deltas.values() for tensor in (delta.a, delta.b)}
    whole = {
        name.removeprefix(PREFIX): WholeTensor(info.dtype, info.shape, functools.partial(source.read, name))
        for name, info in source.tensors.items()
        if name not in used
    }
    kept = _kept(source)
    new: Adapter | LoraFile = (
        LoraFile(modules, source)
        if source.kind in ("kohya", "diffusers")
        else Adapter(modules, whole, base_config=kept)
    )
    saved = tuple(kept.get("modules_to_save", ()))
    errors = {m.name: m.error for m in advice.modules if m.rank}
    if out is None:
        return _result(None, advice, errors, advice.error, new.num_bytes, saved, preflight)
    check_any(rule, spectra, advice)

    def check(folder: Path) -> dict[str, Any]:
        file = open_safetensors(find_inside(folder, new.file_name))
        lost = 0.0
        for m in advice.modules:
            part = parts[m.name]
            if m.rank:
                a, b = (file.read(name).double().flatten(1) for name in new.names(m.name))
                errors[m.name] = _distance(part, b, a) / math.sqrt(part.squared_norm)
            lost += (errors.get(m.name, 1.0)) ** 2 * part.squared_norm
        error = math.sqrt(lost) / total if total else 0.0
        return {"rule": advice.rule, "error": error, "errors": errors, "advice": advice.to_json(),
                "environment": environment()}  # fmt: skip

    report = write_adapter(Path(out), new, check)
    return _result(Path(out), advice, errors, report["error"], new.num_bytes, saved, preflight)


def _kept(source: Checkpoint) -> dict[str, Any]:
    """Entries of the config that the new one has, too."""
    config = dict(source.config or {}) if source.kind == "peft" else {}
    kept: dict[str, Any] = {key: config[key] for key in _KEPT if config.get(key) is not None}
    saved = kept.get("modules_to_save", [])
    if not isinstance(saved, list) or not all(isinstance(name, str) for name in saved):
        raise ValueError(f"`modules_to_save` of the adapter's config must be a list of names; got {show(saved)}.")
    return kept | {"fan_in_fan_out": bool(config.get("fan_in_fan_out"))}


def _module_name(delta: LowRankDelta) -> str:
    if delta.expert is not None:
        raise _not_linear(delta, "one of a stack of experts")
    if "lora_embedding" in delta.a:
        raise _not_linear(delta, "an embedding")
    return delta.weight.removeprefix(PREFIX).removesuffix(".weight")


def _decompose(source: Checkpoint, delta: LowRankDelta) -> Decomposition:
    """Decompose `scale · B A`, (out, in), whichever way the weight is stored."""
    if len(source.tensors[delta.a].shape) != 2 and source.kind == "peft":
        raise _not_linear(delta, "a convolution")
    left, right = delta.factors(source.read)
    if not (left.isfinite().all() and right.isfinite().all()):
        raise ValueError(f"Factors must be finite; those of {show(delta.weight)!r} hold NaN or infinity.")
    return decompose_factors(right, left) if delta.transposed else decompose_factors(left, right)


def _not_linear(delta: LowRankDelta, what: str) -> ValueError:
    return ValueError(
        f"An adapter must be of linear modules to be resized; {show(delta.weight)!r} is {what}. "
        "Merge it into its base and use `rankrise lora`."
    )


def _dtype(source: Checkpoint, delta: LowRankDelta) -> torch.dtype:
    dtype = source.tensors[delta.a].dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32


def _spectrum(name: str, part: Decomposition) -> ModuleSpectrum:
    return ModuleSpectrum(name, part.shape, tuple(part.sigma.tolist()), float(part.sigma.square().sum()))


def _module(part: Decomposition, delta: LowRankDelta, rank: int, dtype: torch.dtype) -> AdapterModule:
    b, a = part.factors(rank)
    name = _module_name(delta)
    return AdapterModule(name, part.shape, rank, dtype, lambda: (a, b), is_parameter=delta.by_parameter)


def _distance(part: Decomposition, b: torch.Tensor, a: torch.Tensor) -> float:
    """`‖U S Vᵀ − B A‖_F` from the factors: the stacked ones have a small core."""
    left = torch.cat([part.left * part.sigma, -b], dim=1)
    right = torch.cat([part.right, a])
    core = torch.linalg.qr(left).R @ torch.linalg.qr(right.mT).R.mT
    return float(core.norm())


def _result(
    out: Path | None,
    advice: Advice,
    errors: dict[str, float],
    error: float,
    num_bytes: int,
    saved: tuple[str, ...],
    preflight: Preflight,
) -> Extraction:
    nothing = tuple(module.name for module in advice.modules if not module.rank)
    return Extraction(out, advice, errors, error, error, (), nothing, saved, num_bytes, True, None, preflight)
