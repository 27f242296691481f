"""Which rank each module needs, from spectra alone, and the evidence.

Symbols:
    Δ_i     change of module i, σ its singular values as far as they are known, ‖Δ_i‖_F² exactly
    error   ‖Δ_i − best part of rank r‖_F / ‖Δ_i‖_F; over several modules the root of the summed squares, likewise
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankrise.checkpoints._allocation import allocate_ranks, ranks_for_energy
from rankrise.checkpoints._rule import SIZES, RankRule, snapped

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
    error: float  # of its own change, at this rank
    relative_size: float  # ‖Δ‖_F / ‖W‖_F
    share: float  # of Σ ‖Δ_i‖_F² over all modules
    parameters: int
    floor_rank: int | None
    is_worth_it: bool  # whether the best use of as many parameters in all gives it any
    note: str


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

    @property
    def parameters(self) -> int:
        """Of the whole adapter."""
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
        return lora_arguments(self.ranks)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not known is None."""
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


def lora_arguments(ranks: Mapping[str, int], others: Sequence[str] = ()) -> dict[str, Any]:
    """`r`, `lora_alpha`, `target_modules`, `rank_pattern`, `alpha_pattern` that give each module its rank at scale 1.

    PEFT takes a pattern for every module whose name ends in it after a dot, the first one that does, and a target
    likewise. So names are whole and escaped, the longest come first, and where a whole name ends another one the
    targets become one expression that matches nothing else.

    Args:
        ranks: Module name to rank.
        others: Names of modules that must not be adapted, as far as they are known.
    """
    names = sorted(ranks, key=lambda name: (-len(name), name))
    most_common = max(set(ranks.values()), key=lambda r: (list(ranks.values()).count(r), r), default=8)
    pattern = {escaped(name): ranks[name] for name in names}
    known = set(others) | set(names)
    suffixes = {".".join(name.split(".")[n:]) for name in known for n in range(1, name.count(".") + 1)}
    is_ambiguous = any(name in suffixes for name in names)
    targets: str | list[str] = sorted(ranks)
    if is_ambiguous:
        targets = f"(?:{'|'.join(escaped(name) for name in targets)})"
    return {
        "r": most_common,
        "lora_alpha": most_common,
        "target_modules": targets,
        "rank_pattern": pattern,
        "alpha_pattern": dict(pattern),
    }


def escaped(name: str) -> str:
    """The name as a regular expression that matches it alone; `-` and `_` stay readable."""
    return "".join(c if c.isalnum() or c in "_-" else f"\\{c}" for c in name)


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
