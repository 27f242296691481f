"""Every changed module of two checkpoints, decomposed once, as deep as the rule that chooses its rank needs."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from rankrise.checkpoints.delta import (
    HELD_BYTES,
    Decomposition,
    Delta,
    StackDecomposition,
    decompose_delta,
    decompose_stack,
    first_pass,
    full_floor,
    quick_floor,
)
from rankrise.checkpoints.files import Checkpoint, show
from rankrise.checkpoints.lora._advice import Advice, ModuleSpectrum, advise_by
from rankrise.checkpoints.lora._allocation import SIZES, RankRule, snapped
from rankrise.checkpoints.match import Module, Pair, Preflight

OnModule = Callable[[str, int, int], None]  # name, how many are done, of how many
_FIRST_RANK = 64  # directions at first where the rule needs spectra and not ranks
_ROUNDS = 5
_HELD_BYTES = HELD_BYTES // 2  # most bytes of factors that wait to be written; the other half is for the change


@dataclass(frozen=True, eq=False)
class FoundDelta:
    """One module that changed, decomposed."""

    module: Module
    delta: Callable[[], Delta]
    decomposition: Decomposition  # without factors where these were not held
    spectrum: ModuleSpectrum
    again: Callable[[], Decomposition]
    take: Callable[[Callable[[], Delta], dict[str, Any]], Decomposition]  # another decomposition of the change

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """A (r, in) and B (out, r) of a Linear, at most `rank` directions."""
        whole = self.decomposition if self.decomposition.has_factors else self.again()
        if isinstance(whole, StackDecomposition):
            return self._as_parameter(*whole.expert_factors(rank))
        left, right = whole.factors(rank)
        return (left.mT, right.mT) if self.module.is_transposed else (right, left)

    def _as_parameter(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """A (E r, in) and B (out, r E) of a stack as PEFT reshapes them: A to (E, r, in), B to (out, r, E)."""
        a, b = (left.mT, right.mT) if self.module.is_transposed else (right, left)
        return a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)


@dataclass(frozen=True)
class Other:
    """One tensor whose change is not in A and B."""

    pair: Pair
    module: Module
    squared: float
    base_norm: float
    is_saved: bool


@dataclass(eq=False)
class Work:
    """The decomposition of all modules of a pair of checkpoints."""

    base: Checkpoint
    tuned: Checkpoint
    preflight: Preflight
    rule: RankRule
    modules: dict[str, Module]
    exact: bool = False
    device: str = "cpu"
    is_writing: bool = False  # whether factors are wanted, or spectra alone
    on_module: OnModule | None = None
    held: int = 0  # bytes of factors
    matrix_squares: tuple[float, float] = (0.0, 0.0)  # ‖Δ‖_F² and ‖W‖_F² over all matrices

    def decompose_all(self, whole: set[str]) -> tuple[dict[str, FoundDelta], list[Other], list[str]]:
        """Return what changed by module, what is not in A and B, and what did not change.

        Args:
            whole: Modules that are written whole.

        Raises:
            ValueError: A change is not finite in float32, or a weight has no rounding floor where that is the rule.
        """
        found: dict[str, FoundDelta] = {}
        others: list[Other] = []
        unchanged: list[str] = []
        tied = set(self.preflight.tied)
        for number, pair in enumerate(self.preflight.pairs, 1):
            module = self._module(pair, pair.name in tied)
            delta = self._delta(pair)
            squared = delta.squared_norm()
            if not math.isfinite(squared):
                raise ValueError(
                    f"A change must be finite in float32; {show(module.tensor)!r} holds NaN or infinity, or changed by "
                    "more than 3e38. `rankrise diff` tells which."
                )
            if len(pair.shape) > 1:
                change, base = self.matrix_squares
                self.matrix_squares = change + squared, base + delta.base_norm**2
            is_saved = any(module.name == name or module.name.startswith(f"{name}.") for name in whole)
            if squared == 0:
                unchanged.append(pair.name)
            elif module.is_adaptable and not is_saved:
                found[module.name] = self._found(pair, module, delta)
            else:
                others.append(Other(pair, module, squared, delta.base_norm, is_saved))
            if self.on_module is not None:
                self.on_module(pair.name, number, len(self.preflight.pairs))
        return found, others, unchanged

    def advise(self, found: dict[str, FoundDelta]) -> Advice:
        """Return advice; modules that would use more directions than were found are decomposed again, in `found`."""
        advice = advise_by(self.rule, [f.spectrum for f in found.values()])
        if self.rule.kind not in ("budget", "error") or self.rule.snap:
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
                self.held -= f.decomposition.num_bytes
                again = functools.partial(f.take, f.delta, {"max_rank": 4 * f.decomposition.max_rank})
                deeper = again()
                spectrum = _spectrum(f.module, deeper, f.spectrum)
                found[f.module.name] = FoundDelta(f.module, f.delta, self._hold(deeper), spectrum, again, f.take)
            advice = advise_by(self.rule, [f.spectrum for f in found.values()])
        return advice

    def _module(self, pair: Pair, is_tied: bool) -> Module:
        assert pair.base_name is not None
        module = self.modules[pair.base_name]
        if is_tied:  # the output layer, which the base reads from its embedding
            module = Module(pair.name, pair.name.removesuffix(".weight"), "weight", "linear")
        is_resized = pair.is_resized(self.base.tensors, self.tuned.tensors)
        return replace(module, kind="resized") if is_resized else module

    def _delta(self, pair: Pair) -> Delta:
        return Delta(self.base, self.tuned, pair, self.device)

    def _found(self, pair: Pair, module: Module, delta: Delta) -> FoundDelta:
        floor_rank, note = self._floor(pair, module, delta) if self.rule.kind == "floor" else (None, "")
        wanted = self._wanted(min(pair.shape[-2:]), floor_rank, module.name)
        take = functools.partial(self._decompose, pair, module)
        decomposition = take(lambda: delta, wanted)
        if self.rule.snap and self.rule.kind == "energy":
            reached = int((decomposition.errors() ** 2 > 1 - self.rule.value).sum())
            wanted = {"max_rank": snapped(reached)}
            decomposition = take(lambda: delta, wanted)
        known = ModuleSpectrum(module.name, (0, 0), (), 0.0, delta.base_norm, floor_rank, note, module.is_parameter)
        read = functools.partial(self._delta, pair)  # a new one: `delta` holds what it has read
        again = functools.partial(take, read, wanted)
        spectrum = _spectrum(module, decomposition, known)
        return FoundDelta(module, read, self._hold(decomposition), spectrum, again, take)

    def _decompose(
        self, pair: Pair, module: Module, read: Callable[[], Delta], wanted: dict[str, Any]
    ) -> Decomposition:
        delta = read()
        if module.is_stack:
            if delta.base_norm != delta.base_norm:
                delta.squared_norm()
            noise = delta.rounding()
            return decompose_stack(
                delta, pair.shape, lambda d: decompose_delta(d, exact=self.exact, noise=noise, **wanted)
            )
        source = delta.source
        if delta.base_norm != delta.base_norm:  # known after one pass
            delta.squared_norm()
        return decompose_delta(source, exact=self.exact, noise=delta.rounding(), **wanted)

    def _hold(self, found: Decomposition) -> Decomposition:
        if not self.is_writing or self.held + found.num_bytes > _HELD_BYTES:
            return found.without_factors()
        self.held += found.num_bytes
        return found

    def _floor(self, pair: Pair, module: Module, delta: Delta) -> tuple[int, str]:
        """The rank above the floor of the stored formats, and a note where it is a lower bound."""
        matrix = delta.matrix
        if len(pair.shape) == 3:
            raise ValueError(
                f"`floor` must have matrices; {show(pair.name)!r} is a stack of experts, whose floor is not known. "
                "Use `energy`."
            )
        if matrix.has_scales:
            raise ValueError(
                f"`floor` must have weights on a known grid; {show(pair.name)!r} is stored with scales. Use `energy`."
            )
        sums = first_pass(matrix)
        sums.held = None  # `delta` has it
        floor = full_floor(matrix, sums)
        if floor is not None:
            return floor.rank, ""
        most = _FIRST_RANK
        while True:
            sigma = self._decompose(pair, module, lambda: delta, {"max_rank": most}).sigma
            floor = quick_floor(matrix, sums, sigma.cpu())
            assert floor is not None
            if floor.rank < most:
                return floor.rank, "too large for a floor of its own rows: a lower bound"
            most *= 4

    def _wanted(self, small: int, floor_rank: int | None, name: str) -> dict[str, Any]:
        kind, value = self.rule.kind, self.rule.value
        most = SIZES[-1] if self.rule.snap else small
        if kind == "energy":
            return {"energy": value, "max_rank": most if self.rule.snap else None}
        if kind == "rank":
            return {"max_rank": min(most, snapped(int(value)) if self.rule.snap else int(value))}
        if self.rule.ranks is not None:
            wanted = max(1, self.rule.ranks.get(name, 1))
            return {"max_rank": min(most, snapped(wanted) if self.rule.snap else wanted)}
        if kind == "floor":
            count = max(1, floor_rank or 0)
            return {"max_rank": min(most, snapped(count) if self.rule.snap else count)}
        if kind == "error":
            return {"energy": max(1e-3, 1 - value**2), "max_rank": most if self.rule.snap else None}
        return {"max_rank": min(most, _FIRST_RANK)}


def _spectrum(module: Module, found: Decomposition, known: ModuleSpectrum) -> ModuleSpectrum:
    """`known` with the shape and the values that were found."""
    shape = found.shape[::-1] if module.is_transposed else found.shape
    squared_norm = float(found.sigma.square().sum()) + found.squared_rest
    return replace(known, shape=(shape[0], shape[1]), sigma=tuple(found.sigma.tolist()), squared_norm=squared_norm)
