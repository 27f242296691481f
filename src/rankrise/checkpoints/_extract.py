"""The verb: two checkpoints in, advice and a verified PEFT adapter out, with one decomposition a module."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints._advice import Advice, ModuleSpectrum, advise_by
from rankrise.checkpoints._blocks import find_device
from rankrise.checkpoints._checkpoint import Checkpoint
from rankrise.checkpoints._decompose import Decomposition, decompose_delta
from rankrise.checkpoints._deltas import Delta
from rankrise.checkpoints._extraction import Extraction, NotCarried
from rankrise.checkpoints._folder import check_place
from rankrise.checkpoints._modules import Module, find_modules
from rankrise.checkpoints._open import open_checkpoint
from rankrise.checkpoints._peft_writer import Adapter, AdapterModule, padded, write_adapter
from rankrise.checkpoints._preflight import Pair, Preflight, match_checkpoints
from rankrise.checkpoints._rule import SIZES, RankRule, snapped
from rankrise.checkpoints._saved import find_saved
from rankrise.checkpoints._verify import compare_logits, require_modules, require_transformers, verify_factors
from rankrise.linalg import rank_above_floor
from rankrise.store import environment

OnModule = Callable[[str, int, int], None]  # name, how many are done, of how many
_FIRST_RANK = 64  # directions at first where the rule needs spectra and not ranks
_ROUNDS = 5


def extract_lora(
    base: str | PathLike[str],
    tuned: str | PathLike[str],
    *,
    out: str | PathLike[str] | None = None,
    energy: float | None = None,
    error: float | None = None,
    rank: int | None = None,
    budget: int | None = None,
    floor: bool = False,
    snap: bool = False,
    save: Sequence[str] = (),
    exact: bool = False,
    dtype: torch.dtype = torch.float32,
    verify: bool = False,
    tokens: Sequence[int] | None = None,
    device: str = "cpu",
    allow_torch_load: bool = False,
    on_module: OnModule | None = None,
) -> Extraction:
    """Advise a LoRA rank for every module, and write the adapter that carries the change at these ranks.

    Args:
        base: What training started from: a file or a folder.
        tuned: What it ended with.
        out: Folder of the adapter, new or empty; None for advice only.
        energy: Share of its change that every module keeps; 0.95 if no rule is given.
        error: Relative error over all modules together, with few parameters.
        rank: The same for all.
        budget: Parameters in all, spent where they capture most.
        floor: Every direction that rounding of the stored formats cannot have made.
        snap: Ranks among 8, 16, 32, 64.
        save: Modules to write whole (PEFT's `modules_to_save`): embeddings, norms, layers with biases; by full name,
            by the end of it, or "all" for every one that changed.
        exact: Exact decompositions instead of randomised ones.
        dtype: Of A and B.
        verify: Also compare logits through transformers and peft; the base must be a folder with a config.
        tokens: Input for `verify`; random ones if None.
        device: Where matrices are decomposed.
        allow_torch_load: Read pickles with `weights_only=True`.
        on_module: Told of every module that is done.

    Returns:
        The advice, with errors as read back from the file.

    Raises:
        ValueError: Checkpoints that do not belong together, an option out of range, `out` taken.
        OSError: The disk is full; nothing is left of the adapter.
        ImportError: `verify` without transformers or peft.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> folder = Path(tempfile.mkdtemp())
    >>> generator = torch.Generator().manual_seed(0)
    >>> weight, left, right = (torch.randn(*s, generator=generator) for s in ((64, 96), (64, 2), (2, 96)))
    >>> save_file({"mlp.up.weight": weight}, folder / "base.safetensors")
    >>> save_file({"mlp.up.weight": weight + 0.01 * left @ right}, folder / "tuned.safetensors")
    >>> base, tuned = folder / "base.safetensors", folder / "tuned.safetensors"
    >>> done = extract_lora(base, tuned, out=folder / "adapter", floor=True)
    >>> done.advice.ranks, done.error < 1e-4
    ({'mlp.up': 2}, True)
    """
    rule = RankRule.of(energy=energy, error=error, rank=rank, budget=budget, floor=floor, snap=snap)
    _check_options(out, verify, dtype)
    device = find_device(device)
    before, after = (open_checkpoint(path, allow_torch_load=allow_torch_load) for path in (base, tuned))
    preflight = preflight_lora(before, after)
    work = _Work(before, after, preflight, rule, exact, device, find_modules(before), on_module)
    saved = find_saved(save, preflight, before, after, work.modules) if save else {}
    saved_modules = tuple(sorted({module for module, _ in saved.values()}))
    found, others, unchanged = work.decompose_all(saved)
    advice = _deepened(work, found)
    rest = sum(item.squared for item in others if not item.is_saved)
    if out is None:
        errors = {m.name: m.error for m in advice.modules if m.rank}
        total = _error(found, errors, rest)
        size = dtype.itemsize * advice.parameters
        return _result(None, advice, errors, total, others, unchanged, saved_modules, size, found, None, preflight)
    modules = [_factors(found[m.name], m.rank, dtype) for m in advice.modules if m.rank]
    if verify:
        require_modules(Path(base), advice.ranks)
    others_names = [m.name for m in work.modules.values() if m.name not in advice.ranks]
    whole = {name: after.read_weight(tensor).contiguous() for name, (_, tensor) in saved.items()}
    adapter = Adapter(modules, whole, saved_modules, str(base), _task(before), others_names)
    errors = {}

    def check(folder: Path) -> dict[str, Any]:
        errors.update(verify_factors(folder, {n: (f.delta(), f.module) for n, f in found.items() if n in advice.ranks}))
        return {
            "rule": advice.rule,
            "error": _error(found, errors),
            "total_error": _error(found, errors, rest),
            "errors": errors,
            "advice": advice.to_json(),
            "environment": environment(),
        }

    report = write_adapter(Path(out), adapter, check)
    logits = compare_logits(Path(base), Path(tuned), Path(out), tokens) if verify else None
    total, size = report["total_error"], adapter.num_bytes
    return _result(Path(out), advice, errors, total, others, unchanged, saved_modules, size, found, logits, preflight)


def preflight_lora(base: Checkpoint, tuned: Checkpoint) -> Preflight:
    """The pre-flight of two whole models.

    Raises:
        ValueError: They do not belong together, or one is an adapter.
    """
    for role, checkpoint in (("base", base), ("tuned", tuned)):
        if checkpoint.is_adapter:
            raise ValueError(
                f"`{role}` must be a whole model; it is an adapter already. `rankrise resize` changes its ranks."
            )
    preflight = match_checkpoints(base, tuned)
    preflight.check()
    return preflight


@dataclass(frozen=True, eq=False)
class _Found:
    """One module that changed, decomposed."""

    module: Module
    delta: Callable[[], Delta]
    decomposition: Decomposition
    spectrum: ModuleSpectrum


@dataclass(frozen=True)
class _Other:
    """One tensor whose change is not in A and B."""

    pair: Pair
    module: Module
    squared: float
    base_norm: float
    is_saved: bool


@dataclass(frozen=True, eq=False)
class _Work:
    base: Checkpoint
    tuned: Checkpoint
    preflight: Preflight
    rule: RankRule
    exact: bool
    device: str
    modules: dict[str, Module]
    on_module: OnModule | None

    def decompose_all(self, saved: dict[str, tuple[str, str]]) -> tuple[dict[str, _Found], list[_Other], list[str]]:
        found: dict[str, _Found] = {}
        others: list[_Other] = []
        unchanged: list[str] = []
        tied = set(self.preflight.tied)
        whole = {module for module, _ in saved.values()}
        for number, pair in enumerate(self.preflight.pairs, 1):
            module = self._module(pair, pair.name in tied)
            delta = Delta(self.base, self.tuned, pair, self.device)
            squared = delta.squared_norm()
            if not math.isfinite(squared):
                raise ValueError(f"Weights must be finite; {module.tensor!r} holds NaN or infinity.")
            is_saved = any(module.name == name or module.name.startswith(f"{name}.") for name in whole)
            if squared == 0:
                unchanged.append(pair.name)
            elif module.is_adaptable and not is_saved:
                found[module.name] = self._found(pair, module, delta)
            else:
                others.append(_Other(pair, module, squared, delta.base_norm, is_saved))
            if self.on_module is not None:
                self.on_module(pair.name, number, len(self.preflight.pairs))
        return found, others, unchanged

    def _module(self, pair: Pair, is_tied: bool) -> Module:
        assert pair.base_name is not None
        module = self.modules[pair.base_name]
        if is_tied:  # the output layer, which the base reads from its embedding
            module = Module(pair.name, pair.name.removesuffix(".weight"), "weight", "linear")
        return module if pair.shape == self.base.tensors[pair.base_name].shape else replace(module, kind="resized")

    def _found(self, pair: Pair, module: Module, delta: Delta) -> _Found:
        floor_rank = None
        if self.rule.kind == "floor":
            before, after = (weight.to(self.device) for weight in delta.stored())
            dtypes = [self.base.tensors[pair.base_name].dtype, self.tuned.tensors[pair.tuned_name].dtype]  # type: ignore[index]
            floor_rank = int(_above_floor(before, after, *dtypes))
        wanted = self._wanted(min(pair.shape), floor_rank)
        decomposition = decompose_delta(delta.source, exact=self.exact, noise=delta.rounding(), **wanted)
        if self.rule.snap and self.rule.kind == "energy":
            reached = int((decomposition.errors() ** 2 > 1 - self.rule.value).sum())
            most = snapped(reached)
            decomposition = decompose_delta(delta.source, exact=self.exact, noise=delta.rounding(), max_rank=most)
        return _Found(module, lambda: Delta(self.base, self.tuned, pair, self.device), decomposition,
                      _spectrum(module, decomposition, delta.base_norm, floor_rank))  # fmt: skip

    def _wanted(self, small: int, floor_rank: int | None) -> dict[str, Any]:
        kind, value = self.rule.kind, self.rule.value
        most = SIZES[-1] if self.rule.snap else small
        if kind == "energy":
            return {"energy": value, "max_rank": most if self.rule.snap else None}
        if kind == "rank":
            return {"max_rank": min(most, snapped(int(value)) if self.rule.snap else int(value))}
        if kind == "floor":
            count = max(1, floor_rank or 0)
            return {"max_rank": min(most, snapped(count) if self.rule.snap else count)}
        if kind == "error":
            return {"energy": max(1e-3, 1 - value**2), "max_rank": most if self.rule.snap else None}
        return {"max_rank": min(most, _FIRST_RANK)}


def _above_floor(base: Tensor, tuned: Tensor, base_dtype: torch.dtype, tuned_dtype: torch.dtype) -> Tensor:
    """The rank above the floor of the stored formats; a float32 file may hold bfloat16 numbers."""
    named = {}
    if base_dtype.itemsize <= 2:
        named["base_dtype"] = base_dtype
    if tuned_dtype.itemsize <= 2:
        named["tuned_dtype"] = tuned_dtype
    return rank_above_floor(base, tuned, **named).rank


def _deepened(work: _Work, found: dict[str, _Found]) -> Advice:
    """Advice, with more directions for modules that would use more than were found."""
    advice = advise_by(work.rule, [f.spectrum for f in found.values()])
    if work.rule.kind not in ("budget", "error") or work.rule.snap:
        return advice
    for _ in range(_ROUNDS):
        short = [
            f
            for f, module in zip(found.values(), advice.modules, strict=True)
            if module.rank == f.decomposition.max_rank
            and f.decomposition.max_rank < min(f.decomposition.shape)
            and f.decomposition.squared_rest > 1e-8 * f.decomposition.squared_norm
        ]
        if not short:
            break
        for f in short:
            delta = f.delta()
            source, most = delta.source, 4 * f.decomposition.max_rank
            deeper = decompose_delta(source, exact=work.exact, noise=delta.rounding(), max_rank=most)
            spectrum = _spectrum(f.module, deeper, f.spectrum.weight_norm, f.spectrum.floor_rank)
            found[f.module.name] = replace(f, decomposition=deeper, spectrum=spectrum)
        advice = advise_by(work.rule, [f.spectrum for f in found.values()])
    return advice


def _spectrum(module: Module, found: Decomposition, weight_norm: float, floor_rank: int | None) -> ModuleSpectrum:
    shape = found.shape[::-1] if module.is_transposed else found.shape
    return ModuleSpectrum(
        module.name,
        (shape[0], shape[1]),
        tuple(found.sigma.tolist()),
        float(found.sigma.square().sum()) + found.squared_rest,
        weight_norm,
        floor_rank,
    )


def _factors(found: _Found, rank: int, dtype: torch.dtype) -> AdapterModule:
    left, right = found.decomposition.factors(rank)
    a, b = (left.mT, right.mT) if found.module.is_transposed else (right, left)
    a, b = padded(a, b, rank)
    a, b = (t.to("cpu", dtype).contiguous() for t in (a, b))
    return AdapterModule(found.module.name, a, b, found.module.is_transposed)


def _error(found: dict[str, _Found], errors: dict[str, float], rest: float = 0.0) -> float:
    """Over all modules that changed, and `rest`, which is lost whole, as is a module of rank 0."""
    squares = {name: f.decomposition.squared_norm for name, f in found.items()}
    total = sum(squares.values()) + rest
    lost = sum(errors.get(name, 1.0) ** 2 * square for name, square in squares.items()) + rest
    return math.sqrt(lost / total) if total else 0.0


def _result(
    out: Path | None,
    advice: Advice,
    errors: dict[str, float],
    total_error: float,
    others: list[_Other],
    unchanged: list[str],
    saved: tuple[str, ...],
    num_bytes: int,
    found: dict[str, _Found],
    logits: Any,
    preflight: Preflight,
) -> Extraction:
    total = sum(f.decomposition.squared_norm for f in found.values()) + sum(item.squared for item in others)
    not_carried = [
        NotCarried(
            item.pair.name,
            item.module.kind,
            math.sqrt(item.squared) / item.base_norm if item.base_norm else math.nan,
            item.squared / total,
            math.prod(item.pair.shape),
            item.module.name if item.module.kind not in ("resized", "a name PEFT cannot match") else "",
        )
        for item in others
        if not item.is_saved
    ]
    return Extraction(
        out=out,
        advice=advice,
        errors=errors,
        error=_error(found, errors),
        total_error=total_error,
        not_carried=tuple(sorted(not_carried, key=lambda item: -item.share)),
        unchanged=tuple(unchanged),
        saved=saved,
        num_bytes=num_bytes,
        is_exact=all(f.decomposition.is_exact for f in found.values()),
        logits=logits,
        preflight=preflight,
    )


def _check_options(out: str | PathLike[str] | None, verify: bool, dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"`dtype` must be float32, float16 or bfloat16; got {dtype}.")
    if out is not None:
        check_place(Path(out))
    if verify:
        if out is None:
            raise ValueError("`verify` must have an adapter to check; give `out`.")
        require_transformers()


def _task(base: Checkpoint) -> str | None:
    """Only that of a language model: for others PEFT would save modules of its own choice."""
    architectures = (base.config or {}).get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return "CAUSAL_LM" if name.endswith(("ForCausalLM", "LMHeadModel")) else None
