"""How ranks are chosen: the rule that decides, and how to spend a budget of parameters over all modules at once.

Symbols:
    g_ij    σ_j² of module i, falling in j: what its j-th direction adds
    c_i     parameters that one direction of module i costs: rows + columns
    r_i     rank of module i; energy(r) = Σ_i Σ_{j≤r_i} g_ij, cost(r) = Σ_i c_i r_i
    λ       price of a parameter, in energy
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

SIZES = (8, 16, 32, 64)  # what serving engines compile for
Kind = Literal["energy", "error", "rank", "budget", "floor", "ranks"]


@dataclass(frozen=True)
class RankRule:
    """One way to choose ranks.

    >>> RankRule.of(energy=0.9).text()
    '90% of the energy of every module'
    """

    kind: Kind
    value: float
    snap: bool = False
    ranks: Mapping[str, int] | None = None  # for the kind "ranks": rank by module; other modules are left alone

    @classmethod
    def of(
        cls,
        *,
        energy: float | None = None,
        error: float | None = None,
        rank: int | None = None,
        budget: int | None = None,
        floor: bool = False,
        snap: bool = False,
        ranks: Mapping[str, int] | None = None,
    ) -> "RankRule":
        """The rule that was asked for; 95% of the energy if none was.

        Raises:
            ValueError: Two rules, or a value out of its range.
        """
        values: dict[Kind, float | None] = {"energy": energy, "error": error, "rank": rank, "budget": budget}
        values["floor"] = 1.0 if floor else None
        values["ranks"] = None if ranks is None else 1.0
        given = {kind: value for kind, value in values.items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"One rule must decide the ranks; got {' and '.join(f'`{kind}`' for kind in given)}.")
        kind, value = next(iter(given.items()), ("energy", 0.95))
        if kind in ("energy", "error") and not 0 < value <= 1:
            raise ValueError(f"`{kind}` must be in (0, 1]; got {value:g}.")
        if kind in ("rank", "budget") and (value != int(value) or value < 1):
            raise ValueError(f"`{kind}` must be a positive whole number; got {value:g}.")
        if ranks is not None and any(type(rank) is not int or rank < 1 for rank in ranks.values()):
            raise ValueError(f"`ranks` must be positive whole numbers; got {dict(ranks)}.")
        return cls(kind, value, snap, ranks)

    def text(self) -> str:
        """Say in words what the rule asks for."""
        words = {
            "energy": f"{100 * self.value:.6g}% of the energy of every module",
            "error": f"a relative error of {self.value:.4g} over all modules, with few parameters",
            "rank": f"rank {self.value:.0f} everywhere",
            "budget": f"the least error with {self.value:,.0f} parameters",
            "floor": "every direction above the rounding floor",
            "ranks": "the ranks that were given",
        }[self.kind]
        return f"{words}, snapped to {'/'.join(map(str, SIZES))}" if self.snap else words


def snapped(rank: int) -> int:
    """The next of 8, 16, 32, 64, at most 64; 0 stays 0.

    >>> [snapped(rank) for rank in (0, 1, 8, 9, 200)]
    [0, 8, 8, 16, 64]
    """
    return next((size for size in SIZES if rank <= size), SIZES[-1]) if rank else 0


@dataclass(frozen=True)
class Allocation:
    """Ranks for a budget, and how much better any other choice could be."""

    ranks: tuple[int, ...]
    parameters: int  # cost(r), at most the budget
    energy: float  # energy(r)
    gap: float  # no choice within the budget has more than energy + gap; 0 if these ranks are proven best


def allocate_ranks(
    squares: Sequence[Sequence[float]], costs: Sequence[int], budget: int, *, sizes: Sequence[int] | None = None
) -> Allocation:
    """Ranks that capture nearly the most energy with at most `budget` parameters, and how much is missing at most.

    Greedy: take the directions in the order of `g_ij / c_i`, most energy per parameter first, then whatever still fits.
    *It is optimal wherever it spends the budget exactly.* Let λ be the last ratio taken, P what is spent. For any ranks
    r with cost ≤ P,

        energy(r) − λ cost(r) = Σ_{i, j≤r_i} (g_ij − λ c_i) ≤ Σ_{g_ij > λ c_i} (g_ij − λ c_i) = energy(greedy) − λ P,

    since greedy takes every direction with `g_ij > λ c_i`, none with `g_ij < λ c_i`, and those of equality add nothing;
    so `energy(r) ≤ energy(greedy) − λ (P − cost(r)) ≤ energy(greedy)`. As g_ij falls in j, what greedy takes of a
    module are its leading directions, which is a rank. Where a remainder of the budget is left, the same inequality,
    with λ the ratio of the first direction that does not fit, says that the remainder buys at most λ times its
    parameters. The remainder is smaller than the cost of that direction, so `gap` is less than the energy of that one
    direction. The same argument holds for whole steps between `sizes`, whose ratios fall as well.

    Args:
        squares: For each module its σ_j², falling.
        costs: For each module the parameters of one direction.
        budget: Parameters in all.
        sizes: Ranks that are allowed beside 0, ascending; any up to the length of `squares` if None.

    Raises:
        ValueError: Lengths differ, a cost is not positive, squares rise, or the budget is negative.

    >>> allocate_ranks([[9.0, 1.0], [4.0, 3.0]], [2, 1], 3).ranks
    (1, 1)
    >>> allocate_ranks([[9.0, 1.0], [4.0, 3.0]], [2, 1], 2).ranks
    (1, 0)
    """
    _check(squares, costs, budget)
    if sizes is None:
        sizes = range(1, max(map(len, squares), default=0) + 1)
    steps = []
    for i, gains in enumerate(squares):
        below = 0
        for size in sizes:
            gain = sum(gains[below:size])
            if gain > 0:
                steps.append((gain / (costs[i] * (size - below)), i, below, size, gain))
            below = size
    steps.sort(key=lambda step: (-step[0], step[1], step[2]))
    ranks, spent = [0] * len(costs), 0
    bound, left = 0.0, budget  # the relaxed problem may take a part of the first step that does not fit
    for ratio, i, below, size, gain in steps:
        cost = costs[i] * (size - below)
        bound, left = bound + min(gain, ratio * left), max(0, left - cost)
        if ranks[i] == below and spent + cost <= budget:
            ranks[i], spent = size, spent + cost
    energy = sum(sum(gains[:rank]) for gains, rank in zip(squares, ranks, strict=True))
    gap = max(0.0, bound - energy)
    return Allocation(tuple(ranks), spent, energy, gap if gap > 1e-12 * energy else 0.0)


def ranks_for_energy(squares: Sequence[Sequence[float]], costs: Sequence[int], energy: float) -> tuple[int, ...]:
    """Ranks that capture `energy` (in the units of the squares) with few parameters: greedy, less what is not needed.

    Where they stop, no ranks that cost less capture as much, by the same argument as in `allocate_ranks`, but for the
    remainder that the last direction adds beyond `energy`. All ranks if everything is not enough.

    >>> ranks_for_energy([[9.0, 1.0], [4.0, 3.0]], [2, 1], 12.5)
    (1, 1)
    """
    _check(squares, costs, 0)
    steps = sorted((-g / costs[i], i, j) for i, gains in enumerate(squares) for j, g in enumerate(gains))
    ranks, captured = [0] * len(costs), 0.0
    for _, i, j in steps:
        if captured >= energy * (1 - 1e-12):
            break
        ranks[i], captured = j + 1, captured + squares[i][j]
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):  # a direction that later ones made superfluous
        while ranks[i] and captured - squares[i][ranks[i] - 1] >= energy * (1 - 1e-12):
            captured -= squares[i][ranks[i] - 1]
            ranks[i] -= 1
    return tuple(ranks)


def _check(squares: Sequence[Sequence[float]], costs: Sequence[int], budget: int) -> None:
    if len(squares) != len(costs):
        raise ValueError(f"`costs` must be one for each module; got {len(costs)} for {len(squares)}.")
    if any(cost < 1 for cost in costs):
        raise ValueError(f"`costs` must be positive; got {min(costs)}.")
    if budget < 0:
        raise ValueError(f"`budget` must not be negative; got {budget}.")
    for gains in squares:
        if any(b > a or b < 0 for a, b in pairwise(gains)):
            raise ValueError("`squares` must fall and not be negative in every module; sort them.")
