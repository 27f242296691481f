"""What is measured, one quantity a file."""

from collections.abc import Iterable

from rankrise._arguments import did_you_mean
from rankrise.tracking.quantities._effective_rank import EFFECTIVE_RANK
from rankrise.tracking.quantities._energy_rank import ENERGY_RANK
from rankrise.tracking.quantities._norms import FROBENIUS_NORM, SPECTRAL_NORM
from rankrise.tracking.quantities._overlap import OVERLAP_LEFT, OVERLAP_RIGHT
from rankrise.tracking.quantities._overlap import subspace_overlap as subspace_overlap
from rankrise.tracking.quantities._quantity import Clock as Clock
from rankrise.tracking.quantities._quantity import Quantity as Quantity
from rankrise.tracking.quantities._spectrum import SPECTRUM
from rankrise.tracking.quantities._stable_rank import STABLE_RANK
from rankrise.tracking.quantities._top_components import TOP_COMPONENTS

QUANTITIES = {
    quantity.name: quantity
    for quantity in (
        STABLE_RANK,
        FROBENIUS_NORM,
        SPECTRAL_NORM,
        SPECTRUM,
        EFFECTIVE_RANK,
        ENERGY_RANK,
        TOP_COMPONENTS,
        OVERLAP_LEFT,
        OVERLAP_RIGHT,
    )
}


def choose(chosen: Iterable[str | Quantity] | None) -> tuple[Quantity, ...]:
    """Quantities by name or as they are; all of `QUANTITIES` for None.

    Raises:
        ValueError: A name that is not there, with those that are; two of one name.

    >>> [q.name for q in choose(["spectrum"])]
    ['spectrum']
    """
    if chosen is None:
        return tuple(QUANTITIES.values())
    if isinstance(chosen, str):
        raise ValueError(f"`quantities` must be a list; got {chosen!r}. Pass [{chosen!r}].")
    found = tuple(_named(q) if isinstance(q, str) else q for q in chosen)
    names = [q.name for q in found]
    if len(set(names)) < len(names):
        raise ValueError(f"Every quantity must have a name of its own; got {names}.")
    return found


def _named(name: str) -> Quantity:
    if name in QUANTITIES:
        return QUANTITIES[name]
    hint = did_you_mean(name, QUANTITIES)
    raise ValueError(f"A quantity must be one of {', '.join(QUANTITIES)}; got {name!r}. {hint}".rstrip())
