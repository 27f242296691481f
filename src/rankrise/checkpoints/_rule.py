"""What decides a rank: exactly one of energy, error, rank, budget, floor; and whether ranks are snapped."""

from dataclasses import dataclass
from typing import Literal

SIZES = (8, 16, 32, 64)  # what serving engines compile for
Kind = Literal["energy", "error", "rank", "budget", "floor"]


@dataclass(frozen=True)
class RankRule:
    """One way to choose ranks.

    >>> RankRule.of(energy=0.9).text()
    '90% of the energy of every module'
    """

    kind: Kind
    value: float
    snap: bool = False

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
    ) -> "RankRule":
        """The rule that was asked for; 95% of the energy if none was.

        Raises:
            ValueError: Two rules, or a value out of its range.
        """
        values: dict[Kind, float | None] = {"energy": energy, "error": error, "rank": rank, "budget": budget}
        values["floor"] = 1.0 if floor else None
        given = {kind: value for kind, value in values.items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"One rule must decide the ranks; got {' and '.join(f'`{kind}`' for kind in given)}.")
        kind, value = next(iter(given.items()), ("energy", 0.95))
        if kind in ("energy", "error") and not 0 < value <= 1:
            raise ValueError(f"`{kind}` must be in (0, 1]; got {value:g}.")
        if kind in ("rank", "budget") and (value != int(value) or value < 1):
            raise ValueError(f"`{kind}` must be a positive whole number; got {value:g}.")
        return cls(kind, value, snap)

    def text(self) -> str:
        """In words."""
        words = {
            "energy": f"{100 * self.value:.6g}% of the energy of every module",
            "error": f"a relative error of {self.value:.4g} over all modules, with few parameters",
            "rank": f"rank {self.value:.0f} everywhere",
            "budget": f"the least error with {self.value:,.0f} parameters",
            "floor": "every direction above the rounding floor",
        }[self.kind]
        return f"{words}, snapped to {'/'.join(map(str, SIZES))}" if self.snap else words


def snapped(rank: int) -> int:
    """The next of 8, 16, 32, 64, at most 64; 0 stays 0.

    >>> [snapped(rank) for rank in (0, 1, 8, 9, 200)]
    [0, 8, 8, 16, 64]
    """
    return next((size for size in SIZES if rank <= size), SIZES[-1]) if rank else 0
