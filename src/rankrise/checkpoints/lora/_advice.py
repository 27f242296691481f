"""Which rank each module needs, from spectra alone, and the evidence for it.

The spectra come from two checkpoints (`advise`), or from the first steps of a tracked run (`advise_run`), before there
is a tuned checkpoint.

Symbols:
    Δ_i     change of module i; σ are its singular values as far as they are known; ‖Δ_i‖_F² is known exactly
    error   ‖Δ_i − best part of rank r‖_F / ‖Δ_i‖_F; for several modules both squares are summed over the modules
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

from rankrise.checkpoints.lora._allocation import SIZES, RankRule, allocate_ranks, ranks_for_energy, snapped
from rankrise.checkpoints.lora._peft_writer import lora_arguments, peft_target
from rankrise.store import load_initial, load_run, load_spec

_CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class ModuleSpectrum:
    """What advice needs to know of one module."""

    name: str
    shape: tuple[int, int]  # out, in
    sigma: tuple[float, ...]  # the leading singular values of its change, falling
    squared_norm: float  # ‖Δ‖_F², all of them
    weight_norm: float = math.nan  # ‖W‖_F of the base, if known
    floor_rank: int | None = None  # directions that rounding cannot have made, if measured
    note: str = ""
    is_parameter: bool = False  # PEFT must be told the parameter and not the module

    @property
    def cost(self) -> int:
        """Parameters of one direction."""
        return sum(self.shape)

    @property
    def squares(self) -> tuple[float, ...]:
        """σ²."""
        return tuple(s * s for s in self.sigma)

    def squared_error(self, rank: int) -> float:
        """`‖Δ‖_F² − Σ_{i≤r} σ_i²`."""
        tail = sum(self.squares[rank:])
        rest = max(0.0, self.squared_norm - math.fsum(self.squares))
        return tail + (rest if rest > 1e-9 * self.squared_norm else 0.0)


@dataclass(frozen=True)
class ModuleAdvice:
    """One row: a module, its rank, and what that rank leaves out."""

    name: str
    shape: tuple[int, int]  # out, in
    rank: int  # 0: leave it alone
    error: float  # relative error of the module's own change at this rank
    relative_size: float  # ‖Δ‖_F / ‖W‖_F
    share: float  # ‖Δ_i‖_F² of the module over the sum of all modules
    parameters: int
    floor_rank: int | None
    is_worth_it: bool  # whether the best use of as many parameters in all gives it any
    note: str
    is_parameter: bool = False  # PEFT must be told the parameter and not the module


@dataclass(frozen=True)
class CurvePoint:
    """Total error with one rank for every module."""

    rank: int
    parameters: int
    error: float
    is_bound: bool = False  # whether some spectrum is not known as far, so that the error may be smaller


@dataclass(frozen=True)
class Advice:
    """Ranks for a model; `training_config()` is what a LoRA configuration takes."""

    rule: str
    modules: tuple[ModuleAdvice, ...]
    error: float  # over all modules
    curve: tuple[CurvePoint, ...]  # one rank for all, as far as the spectra are known
    gap: float = 0.0  # share of Σ ‖Δ_i‖_F² that other ranks within the budget might add; 0 if there are none better
    others: tuple[str, ...] = ()  # modules of the model that must not be adapted, as far as they are known

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the whole adapter."""
        return sum(module.parameters for module in self.modules)

    @property
    def ranks(self) -> dict[str, int]:
        """Module to rank; those that are left alone are not in it."""
        return {module.name: module.rank for module in self.modules if module.rank}

    def training_config(self) -> dict[str, Any]:
        r"""Arguments for `peft.LoraConfig`, scale 1 everywhere: alpha is the rank.

        >>> spectrum = ModuleSpectrum("h.0.q", (4, 4), (2.0, 1.0), 5.0)
        >>> advise([spectrum], energy=0.8).training_config()["rank_pattern"]
        {'h\\.0\\.q': 1}
        """
        told = {m.name: peft_target(m.name, is_parameter=m.is_parameter) for m in self.modules if m.name in self.ranks}
        parameters = [told[m.name] for m in self.modules if m.name in told and m.is_parameter]
        return lora_arguments({told[name]: rank for name, rank in self.ranks.items()}, self.others, parameters)

    def to_json(self) -> dict[str, Any]:
        """Return the advice as values that JSON can hold; what is not known is None."""
        rows = [{k: None if v != v else v for k, v in asdict(module).items()} for module in self.modules]
        return {
            "rule": self.rule,
            "error": self.error,
            "parameters": self.parameters,
            "gap": self.gap,
            "modules": rows,
            "curve": [asdict(point) for point in self.curve],
            "config": self.training_config(),
        }


def advise(
    spectra: Sequence[ModuleSpectrum],
    *,
    energy: float | None = None,
    error: float | None = None,
    rank: int | None = None,
    budget: int | None = None,
    floor: bool = False,
    snap: bool = False,
) -> Advice:
    """Choose a rank for every module, by one rule.

    Args:
        spectra: The modules, with as many singular values as the rule may need.
        energy: Share of `‖Δ_i‖_F²` that every module keeps; 0.95 if no rule is given.
        error: Relative error over all modules together, reached with few parameters: `ranks_for_energy`.
        rank: The same for all.
        budget: Parameters in all, spent where they capture most: `allocate_ranks`.
        floor: Every direction that rounding of the stored formats cannot have made.
        snap: Round ranks up to 8, 16, 32 or 64, and cap them there; with `budget` the ranks are chosen among these.

    Raises:
        ValueError: Two rules, a value out of range, or no measured floor.

    >>> steep = ModuleSpectrum("steep", (10, 10), (3.0, 0.1), 9.01)
    >>> flat = ModuleSpectrum("flat", (10, 10), (1.0, 1.0), 2.0)
    >>> advise([steep, flat], energy=0.9).ranks
    {'steep': 1, 'flat': 2}
    >>> advise([steep, flat], budget=40).ranks
    {'steep': 1, 'flat': 1}
    """
    rule = RankRule.of(energy=energy, error=error, rank=rank, budget=budget, floor=floor, snap=snap)
    return advise_by(rule, spectra)


def advise_by(rule: RankRule, spectra: Sequence[ModuleSpectrum]) -> Advice:
    """`advise` with a rule that is made already."""
    ranks, gap = _ranks_and_gap(rule, spectra)
    total = sum(s.squared_norm for s in spectra)
    spent = sum(s.cost * min(r, len(s.sigma)) for s, r in zip(spectra, ranks, strict=True))
    best = allocate_ranks([s.squares for s in spectra], [s.cost for s in spectra], spent).ranks
    rows = tuple(
        ModuleAdvice(
            s.name,
            s.shape,
            r,
            _relative(s.squared_error(r), s.squared_norm),
            math.sqrt(s.squared_norm) / s.weight_norm if s.weight_norm else math.nan,
            s.squared_norm / total if total else 0.0,
            r * s.cost,
            s.floor_rank,
            b > 0,
            _note(rule, s, r),
            s.is_parameter,
        )
        for s, r, b in zip(spectra, ranks, best, strict=True)
    )
    left = sum(s.squared_error(r) for s, r in zip(spectra, ranks, strict=True))
    return Advice(rule.text(), rows, _relative(left, total), _curve(spectra, total), gap / total if total else 0.0)


def check_any(rule: RankRule, spectra: Sequence[ModuleSpectrum], advice: Advice) -> None:
    """Refuse to write an adapter of nothing.

    Raises:
        ValueError: No module has a rank; says which option is the reason.
    """
    changed = [s for s in spectra if s.sigma]
    if advice.ranks or not changed:
        return
    if rule.kind == "budget":
        cheapest = min(s.cost for s in changed) * (SIZES[0] if rule.snap else 1)
        raise ValueError(f"`budget` must pay for {cheapest:,} parameters, the cheapest rank; got {rule.value:,.0f}.")
    if rule.kind == "floor":
        raise ValueError("An adapter must have directions above the rounding floor; there are none. Use `energy`.")
    raise ValueError(f"`{rule.kind}` must ask for at least one direction; {rule.value:g} asks for none.")


def _ranks_and_gap(rule: RankRule, spectra: Sequence[ModuleSpectrum]) -> tuple[list[int], float]:
    """A rank for each module, 0 where nothing changed or nothing is above the floor; what others might add."""
    squares, costs = [s.squares for s in spectra], [s.cost for s in spectra]
    if rule.kind == "budget":
        best = allocate_ranks(squares, costs, int(rule.value), sizes=SIZES if rule.snap else None)
        return list(best.ranks), best.gap
    if rule.kind == "error":
        total = sum(s.squared_norm for s in spectra)
        ranks = list(ranks_for_energy(squares, costs, (1 - rule.value**2) * total))
    else:
        ranks = [_own_rank(rule, s) for s in spectra]
    return [snapped(r) if rule.snap else r for r in ranks], 0.0


def _own_rank(rule: RankRule, spectrum: ModuleSpectrum) -> int:
    if rule.kind == "rank":
        return min(int(rule.value), len(spectrum.sigma))
    if rule.ranks is not None:
        return min(rule.ranks.get(spectrum.name, 0), len(spectrum.sigma))
    if rule.kind == "floor":
        if spectrum.floor_rank is None:
            raise ValueError(f"`floor` must have been measured; it is not known for {spectrum.name!r}.")
        return min(spectrum.floor_rank, len(spectrum.sigma))
    wanted, captured = rule.value * spectrum.squared_norm * (1 - 1e-12), 0.0
    for rank, square in enumerate(spectrum.squares):
        if captured >= wanted:
            return rank
        captured += square
    return len(spectrum.sigma)


def _note(rule: RankRule, spectrum: ModuleSpectrum, rank: int) -> str:
    if spectrum.squared_norm == 0:
        return "unchanged"
    if rank == 0:
        return "all of it below the rounding floor" if spectrum.floor_rank == 0 else "not worth its parameters"
    notes = [spectrum.note] if spectrum.note else []
    kept = 1 - spectrum.squared_error(rank) / spectrum.squared_norm
    if rule.kind == "energy" and kept < rule.value * (1 - 1e-9):
        why = f"capped at {rank}" if rule.snap and rank == SIZES[-1] else "with all directions there are"
        notes.append(f"{why}: keeps {_down(kept, rule.value)}")
    if spectrum.floor_rank is not None and rank > spectrum.floor_rank:
        notes.append(f"{rank - spectrum.floor_rank} of its directions may be rounding")
    elif rule.kind == "floor" and 4 * rank > min(spectrum.shape):
        notes.append("a dense change, or one rounded at every step")
    if rank * spectrum.cost >= math.prod(spectrum.shape):
        notes.append("more parameters than the weight: save it whole")
    return "; ".join(notes)


def _down(kept: float, asked: float) -> str:
    """A percentage that does not round up to what was asked for."""
    digits = next((n for n in range(8) if round(100 * kept, n) < round(100 * asked, n)), 8)
    return f"{100 * kept:.{digits}f}%"


def _curve(spectra: Sequence[ModuleSpectrum], total: float) -> tuple[CurvePoint, ...]:
    """Up to the rank at which nothing more is known of any module."""
    changed = [s for s in spectra if s.squared_norm > 0]
    points = []
    for rank in _CURVE if changed else ():
        left = sum(s.squared_error(rank) for s in changed)
        parameters = sum(s.cost * min(rank, len(s.sigma)) for s in changed)
        short = [s for s in changed if len(s.sigma) < rank and s.squared_error(rank) > 1e-6 * s.squared_norm]
        points.append(CurvePoint(rank, parameters, _relative(left, total), is_bound=bool(short)))
        if all(rank >= len(s.sigma) for s in changed):
            break
    return tuple(points)


def _relative(squares: float, total: float) -> float:
    return math.sqrt(max(0.0, squares) / total) if total > 0 else 0.0


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
            "Track with `matrices=True` and a `spectra` clock that strikes earlier, as RankTracker(..., spectra=50)."
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
