"""Two checkpoints in; advice and a verified PEFT adapter out, with one decomposition for every module."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from rankrise._arguments import did_you_mean
from rankrise.checkpoints.delta import StackDecomposition, find_device, note_on_size
from rankrise.checkpoints.files import Checkpoint, local_path, open_checkpoint, show
from rankrise.checkpoints.lora._advice import Advice, check_any
from rankrise.checkpoints.lora._allocation import RankRule
from rankrise.checkpoints.lora._not_carried import NotCarried, find_left_out, find_saved
from rankrise.checkpoints.lora._peft_writer import Adapter, AdapterModule, WholeTensor, check_place, write_adapter
from rankrise.checkpoints.lora._verify import (
    LogitsCheck,
    check_verifiable,
    compare_logits,
    require_modules,
    require_transformers,
    verify_factors,
)
from rankrise.checkpoints.lora._work import FoundDelta, OnModule, Work
from rankrise.checkpoints.match import Preflight, find_modules, match_checkpoints
from rankrise.store import environment


@dataclass(frozen=True)
class Extraction:
    """An adapter, why it has these ranks, and what it leaves out."""

    out: Path | None  # None for advice only
    advice: Advice
    errors: Mapping[str, float]  # module to ‖Δ − BA‖_F / ‖Δ‖_F, with BA read back from the file
    error: float  # the same over all linear modules that changed; one of rank 0 is lost whole
    total_error: float  # over everything that changed and that both have, carried or not
    not_carried: tuple[NotCarried, ...]  # largest share first
    unchanged: tuple[str, ...]
    saved: tuple[str, ...]  # modules written whole
    num_bytes: int
    is_exact: bool  # whether every decomposition was
    logits: LogitsCheck | None
    preflight: Preflight
    notes: tuple[str, ...] = ()  # where it falls short of what was asked for
    relative_size: float | None = None  # ‖Δ‖_F / ‖W‖_F over all matrices, as `diff` reports it

    def to_json(self) -> dict[str, Any]:
        """Return the extraction as values that JSON can hold."""
        return {
            "out": None if self.out is None else str(self.out),
            "rule": self.advice.rule,
            "error": self.error,
            "total_error": self.total_error,
            "relative_size": self.relative_size,
            "errors": {show(name): value for name, value in self.errors.items()},
            "num_bytes": self.num_bytes,
            "is_exact": self.is_exact,
            "advice": self.advice.to_json(),
            "not_carried": [{k: (None if v != v else v) for k, v in asdict(item).items()} for item in self.not_carried],
            "unchanged": [show(name) for name in self.unchanged],
            "modules_to_save": list(self.saved),
            "notes": list(self.notes),
            "preflight": self.preflight.to_json(),
            "logits": None if self.logits is None else asdict(self.logits),
        }


_MOST_LEFT = 0.1  # error of a module by `floor`, above which a note says so


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
    ranks: Mapping[str, int] | None = None,
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
        rank: One rank for all modules.
        budget: Number of parameters in all, which are spent where they capture most.
        floor: Whether to keep every direction that rounding of the stored formats cannot have made.
        ranks: Ranks of your own, by the name of a module in memory; modules that are not named get no adapter.
        snap: Ranks among 8, 16, 32, 64.
        save: Modules to write whole (PEFT's `modules_to_save`): embeddings, norms, layers with biases; by full name,
            by the end of it, or "all" for every one that changed.
        exact: Exact decompositions instead of randomised ones.
        dtype: Dtype of A and B.
        verify: Also compare logits through transformers and peft; the base must be a folder with a config.
        tokens: Input for `verify`; random ones if None.
        device: Where matrices are decomposed.
        allow_torch_load: Read pickles with `weights_only=True`.
        on_module: Called for every module that is done.

    Returns:
        The advice, with errors as read back from the file.

    Raises:
        ValueError: Checkpoints that do not belong together, an option out of range, `out` taken, no such device.
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
    rule = RankRule.of(energy=energy, error=error, rank=rank, budget=budget, floor=floor, snap=snap, ranks=ranks)
    _check_options(out, verify, dtype)
    device = find_device(device)
    name, _, revision = str(base).partition("@") if not Path(base).exists() else (str(base), "", "")
    base, tuned = (local_path(path, allow_torch_load=allow_torch_load) for path in (base, tuned))
    before, after = (open_checkpoint(path, allow_torch_load=allow_torch_load) for path in (base, tuned))
    preflight = preflight_lora(before, after)
    if verify:
        check_verifiable(Path(base), Path(tuned), tokens, reshaped=preflight.reshaped)
    modules, is_writing = find_modules(before), out is not None
    work = Work(before, after, preflight, rule, modules, exact, device, is_writing, on_module)
    saved = find_saved(save, preflight, before, after, modules) if save else {}
    saved_modules = tuple(sorted({module for module, _ in saved.values()}))
    found, others, unchanged = work.decompose_all(set(saved_modules))
    if unknown := sorted(set(ranks or ()) - set(found)):
        raise ValueError(
            f"`ranks` must name modules that changed and that LoRA can adapt; {show(unknown[0])!r} is none. "
            f"{did_you_mean(unknown[0], list(found))}".rstrip()
        )
    advice = work.advise(found)
    others_names = tuple(m.name for m in modules.values() if m.name not in advice.ranks)
    advice = replace(advice, others=others_names)
    rest = sum(item.squared for item in others if not item.is_saved)
    whole_saved = sum(item.squared for item in others if item.is_saved)
    changed = sum(f.decomposition.squared_norm for f in found.values()) + sum(item.squared for item in others)
    left_out = find_left_out(others, changed, preflight, after, {tensor for _, tensor in saved.values()})
    errors = {m.name: m.error for m in advice.modules if m.rank}
    size, logits = dtype.itemsize * advice.parameters, None
    if out is not None:
        check_any(rule, [f.spectrum for f in found.values()], advice)
        if verify:
            require_modules(Path(base), advice.ranks)
        written = [_adapter_module(found[m.name], m.rank, dtype) for m in advice.modules if m.rank]
        whole = {name: _whole(after, tensor) for name, (_, tensor) in saved.items()}
        kept = {"revision": revision} if revision else {}
        adapter = Adapter(written, whole, saved_modules, name, _task(before), others_names, kept)

        def check(folder: Path) -> dict[str, Any]:
            nonlocal errors, logits
            deltas = {n: (found[n].delta, found[n].module) for n in advice.ranks}
            errors = verify_factors(folder, deltas, modules.values())
            if verify:
                carried = {n: found[n].module for n in advice.ranks}
                logits = compare_logits(Path(base), Path(tuned), folder, carried, tokens)
            return {
                "rule": advice.rule,
                "error": _error(found, errors),
                "total_error": _error(found, errors, rest, whole_saved),
                "errors": errors,
                "not_carried": [item.name for item in left_out],
                "logits": None if logits is None else asdict(logits),
                "advice": advice.to_json(),
                "environment": environment(),
            }

        write_adapter(Path(out), adapter, check)
        size = adapter.num_bytes
    return Extraction(
        out=None if out is None else Path(out),
        advice=advice,
        errors=errors,
        error=_error(found, errors),
        total_error=_error(found, errors, rest, whole_saved),
        not_carried=left_out,
        unchanged=tuple(unchanged),
        saved=saved_modules,
        num_bytes=size,
        is_exact=all(f.decomposition.is_exact for f in found.values()),
        logits=logits,
        preflight=preflight,
        notes=_notes(rule, advice, found, errors, dtype),
        relative_size=math.sqrt(work.matrix_squares[0] / work.matrix_squares[1]) if work.matrix_squares[1] else None,
    )


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


def _adapter_module(found: FoundDelta, rank: int, dtype: torch.dtype) -> AdapterModule:
    shape, num_experts = found.spectrum.shape, 1
    if isinstance(found.decomposition, StackDecomposition):
        num_experts = len(found.decomposition.parts)
        shape = (shape[0] // num_experts, shape[1] // num_experts)
    return AdapterModule(
        found.module.name,
        shape,
        rank,
        dtype,
        lambda: found.factors(rank),
        found.module.is_transposed,
        found.module.is_parameter,
        num_experts,
    )


def _whole(checkpoint: Checkpoint, tensor: str) -> WholeTensor:
    """Describe a tensor as the model uses it; its first row is read to learn the dtype."""
    shape = checkpoint.tensors[tensor].shape
    if not shape:
        return WholeTensor(checkpoint.tensors[tensor].dtype, shape, lambda: checkpoint.read(tensor))
    first = checkpoint.read_weight(tensor, 0, min(1, shape[0]))
    return WholeTensor(first.dtype, shape, lambda: checkpoint.read_weight(tensor))


def _error(found: dict[str, FoundDelta], errors: dict[str, float], rest: float = 0.0, saved: float = 0.0) -> float:
    """The relative error over all modules that changed, `rest`, which is lost whole, and `saved`, which is kept whole.

    A module of rank 0 is lost whole as well.
    """
    squares = {name: f.decomposition.squared_norm for name, f in found.items()}
    total = sum(squares.values()) + rest + saved
    lost = sum(errors.get(name, 1.0) ** 2 * square for name, square in squares.items()) + rest
    return math.sqrt(lost / total) if total else 0.0


def _notes(
    rule: RankRule, advice: Advice, found: dict[str, FoundDelta], errors: dict[str, float], dtype: torch.dtype
) -> tuple[str, ...]:
    """Return notes on where the adapter falls short of what was asked for, or is larger than what it stands for."""
    changes = [(math.sqrt(f.decomposition.squared_norm), f.spectrum.weight_norm) for f in found.values()]
    note = note_on_size(math.hypot(*(c for c, _ in changes)), math.hypot(*(b for _, b in changes)))
    notes = [] if note is None else [note]
    error = _error(found, errors)
    if rule.kind == "error" and error > rule.value * (1 + 1e-3):
        why = "ranks are capped" if rule.snap else f"{dtype} rounds the factors" if dtype.itemsize < 4 else "rounding"
        notes.append(f"the error over all modules is {error:.3g} and not {rule.value:.3g}: {why.replace('torch.', '')}")
    short = {m.name: errors.get(m.name, 1.0) for m in advice.modules if errors.get(m.name, 1.0) > _MOST_LEFT}
    if rule.kind == "floor" and short:
        most = max(short, key=lambda name: short[name])
        notes.append(
            f"the directions above the floor leave an error above {_MOST_LEFT:.2g} in {len(short)} of {len(found)} "
            f"modules, most in {show(most)} ({short[most]:.2g}): rounding, or change too weak to tell from it; "
            "`energy` keeps it"
        )
    weights = sum(math.prod(m.shape) for m in advice.modules if m.rank)
    if advice.parameters >= weights > 0:
        notes.append(
            f"{advice.parameters:,} parameters are no fewer than the {weights:,} of the weights they change: "
            "ask for less, or keep the tuned model"
        )
    return tuple(notes)


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
    """Return the task of a language model and None for others, for which PEFT would save modules of its own choice."""
    architectures = (base.config or {}).get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return "CAUSAL_LM" if name.endswith(("ForCausalLM", "LMHeadModel")) else None
