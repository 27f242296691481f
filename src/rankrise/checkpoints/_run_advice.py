"""Advice from a tracked run: the ranks that training uses by its first steps, before there is a tuned checkpoint."""

import math
from os import PathLike
from typing import Any

from rankrise.checkpoints._advice import Advice, ModuleSpectrum, advise_by
from rankrise.checkpoints._rule import RankRule
from rankrise.store import load_initial, load_run, load_spec


def advise_run(
    path: str | PathLike[str],
    *,
    steps: int | None = None,
    energy: float | None = None,
    error: float | None = None,
    rank: int | None = None,
    budget: int | None = None,
    snap: bool = False,
) -> Advice:
    """LoRA ranks for the attention matrices of a model, from the first steps of a tracked run.

    Reads the spectra of the whole matrices q, k, v, o that `RankTracker(matrices=True)` records, at the last
    measurement not after `steps`. Of a fused module the spectra of its parts are merged: their union spans the change
    of the whole, so the rank is an upper bound, and the row says so.

    Args:
        path: The run directory, finished or not.
        steps: Use what was measured up to this step; everything if None.
        energy: As in `advise`; so are the other rules.
        error: Over all modules.
        rank: The same for all.
        budget: Parameters in all.
        snap: Ranks among 8, 16, 32, 64.

    Raises:
        FileNotFoundError: No run there.
        ValueError: It has no spectra of whole matrices up to that step; an option out of range.
    """
    rule = RankRule.of(energy=energy, error=error, rank=rank, budget=budget, snap=snap)
    step, sigmas = _spectra(path, steps)
    norms = {name: float(weight.double().norm()) for name, weight in load_initial(path).items()}
    modules: dict[str, dict[str, Any]] = {}
    for layer in load_spec(path)["layers"]:
        for role, view in layer["views"].items():
            parameter = view["parameter"]
            module = modules.setdefault(parameter, {"sigma": [], "roles": [], "shape": _shape(role, view)})
            module["sigma"] += sigmas.get((layer["index"], role), [])
            module["roles"].append(role)
    spectra = [_spectrum(name, module, norms.get(name, math.nan)) for name, module in modules.items()]
    advice = advise_by(rule, spectra)
    return Advice(f"{advice.rule}, at step {step}", advice.modules, advice.error, advice.curve)


def _spectra(path: str | PathLike[str], steps: int | None) -> tuple[int, dict[tuple[int, str], list[float]]]:
    import pyarrow.compute as pc

    table = load_run(path)
    wanted = (pc.field("quantity") == "spectrum") & (pc.field("head") == -1)
    if steps is not None:
        wanted &= pc.field("step") <= steps
    table = table.filter(wanted)
    if not table.num_rows:
        by = f" up to step {steps}" if steps is not None else ""
        raise ValueError(
            f"The run in {path} must have spectra of the matrices q, k, v, o{by}; it has none. "
            "Track with `matrices=True` and a `spectra` clock that strikes earlier."
        )
    step = pc.max(table["step"]).as_py()
    found: dict[tuple[int, str], list[float]] = {}
    for row in table.filter(pc.field("step") == step).to_pylist():
        if not math.isfinite(row["value"]):
            raise ValueError(f"Spectra must be finite; layer {row['layer']} {row['circuit']} at step {step} is not.")
        found.setdefault((row["layer"], row["circuit"]), []).append(row["value"])
    return step, found


def _shape(role: str, view: dict[str, Any]) -> tuple[int, int]:
    """Out, in: the heads lie along the outputs of q, k, v and along the inputs of o."""
    rows, columns = view["shape"]
    is_transposed = (view["axis"] == 0) == (role == "o")
    return (columns, rows) if is_transposed else (rows, columns)


def _spectrum(parameter: str, module: dict[str, Any], norm: float) -> ModuleSpectrum:
    sigma = sorted(module["sigma"], reverse=True)
    roles = list(dict.fromkeys(module["roles"]))
    total = math.fsum(s * s for s in sigma)
    kept = tuple(s for s in sigma if s > 1e-7 * sigma[0])[: min(module["shape"])] if total else ()
    note = "" if total else "unchanged"
    if len(roles) > 1 and total:
        note = f"{'+'.join(roles)} fused: an upper bound"
    name = parameter.removesuffix(".weight")
    return ModuleSpectrum(name, module["shape"], kept, total, norm, note=note)
