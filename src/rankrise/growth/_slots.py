"""The slots of one LoRA module: directions that are switched on and off without changing a shape.

Symbols:
    A, B      the module's factors, (cap, in) and (out, cap); the module adds `B A x` to its base, at scale 1
    slot k    row k of A and column k of B; it is empty where both are zero
    P_A, P_B  projections onto the rows of A and the columns of B that are live

An empty slot is a saddle of the loss: its gradient is exactly zero, so that the slot stays empty, also under weight
decay and momentum.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

NORM = 1 / math.sqrt(3)  # norm of a row of A as PEFT draws it: uniform within ±1/√in
_NO_COLUMN = 1e-3  # a column of B below this share of the largest one spans nothing yet
_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")


@dataclass(eq=False)
class Slots:
    """One module with `cap` slots, the last `num_probes` of which never hold a direction of the adapter."""

    name: str  # name of the module in the base model
    a: nn.Parameter  # (cap, in)
    b: nn.Parameter  # (out, cap)
    num_probes: int
    is_live: list[bool] = field(default_factory=list)  # one entry for each slot before the probe

    @property
    def num_slots(self) -> int:
        """How many slots may hold a direction."""
        return self.a.shape[0] - self.num_probes

    @property
    def live(self) -> list[int]:
        """Return the slots that are in use."""
        return [k for k, on in enumerate(self.is_live) if on]

    @property
    def free(self) -> list[int]:
        """Return the slots that are not in use."""
        return [k for k, on in enumerate(self.is_live) if not on]

    @property
    def cost(self) -> int:
        """Parameters of one slot."""
        return self.a.shape[1] + self.b.shape[0]

    @property
    def room(self) -> int:
        """How many directions can be added: at most the free slots, and at most the dimensions that are left."""
        return max(0, min(len(self.free), min(self.a.shape[1], self.b.shape[0]) - len(self.live)))

    def outside_rows(self, rows: Tensor) -> Tensor:
        """`rows (I − P_A)`, (n, in)."""
        return (
            rows - (rows @ basis) @ basis.mT if (basis := _basis(self.a.detach()[self.live].mT)) is not None else rows
        )

    def outside_columns(self, columns: Tensor) -> Tensor:
        """`(I − P_B) columns`, (out, n)."""
        b = self.b.detach()[:, self.live]
        norms = b.norm(dim=0)
        b = b[:, norms > _NO_COLUMN * norms.max()] if b.shape[1] else b
        return columns - basis @ (basis.mT @ columns) if (basis := _basis(b)) is not None else columns

    @torch.no_grad()
    def fill_probe(self, rows: Tensor | None, columns: Tensor | None) -> None:
        """Write rows or columns into the probe, and zeros into its other entries. The output does not change."""
        begin = self.num_slots
        self.a[begin:], self.b[:, begin:] = 0, 0
        if rows is not None:
            self.a[begin : begin + len(rows)] = rows.to(self.a)
        if columns is not None:
            self.b[:, begin : begin + columns.shape[1]] = columns.to(self.b)

    @torch.no_grad()
    def wake(self, direction: Tensor) -> int:
        """Switch on the first free slot, with a direction of unit norm, and return it. No output changes."""
        slot = self.free[0]
        self.a[slot], self.b[:, slot] = NORM * direction.to(self.a), 0
        self.is_live[slot] = True
        return slot

    @torch.no_grad()
    def empty_all_but(self, kept: int) -> None:
        """Keep the first `kept` slots and empty the others."""
        self.a[kept:], self.b[:, kept:] = 0, 0
        self.is_live = [k < kept for k in range(self.num_slots)]


@torch.no_grad()
def seed_state(slots: Slots, slot: int, optimiser: Any, column: Tensor, row: Tensor) -> bool:
    """Give a woken slot the optimiser state that it would have if it had been live.

    Adam counts steps for a whole tensor. A slot that wakes late would therefore have no correction for its empty
    moments, and its first updates would be up to 6.6 times too large (β₂ = 0.999).

    Args:
        slots: The module.
        slot: Which one has woken.
        optimiser: The optimiser, or a wrapper of it.
        column: (out,), mean square of the gradient of this column of B.
        row: (in,), mean square that the gradient of this row of A will have, where no row is live yet.

    Returns:
        Whether the state is of a known kind.
    """
    others = [k for k in slots.live if k != slot]
    known = True
    for parameter, moment in ((slots.a, row), (slots.b, column)):
        state = _state(optimiser, parameter)
        is_a = parameter is slots.a
        for key, tensor in _per_entry(state, parameter):
            values = tensor if is_a else tensor.mT  # one row for every slot
            if key not in _SECOND_MOMENTS:
                values[slot] = 0
            elif is_a and others:
                values[slot] = values[others].median(dim=0).values
            else:
                values[slot] = moment.to(values)
        known &= _is_known(state, parameter)
    return known


@torch.no_grad()
def move_state(slots: Slots, optimiser: Any, a_map: Tensor, b_map: Tensor) -> None:
    """Carry the optimiser state along where factors are replaced: `A ← M A`, `B ← B N`.

    The gradient of the new B is the gradient of the old B times Mᵀ, and the gradient of the new A is Nᵀ times that of
    the old A. First moments therefore follow exactly. Second moments follow as if the gradients of the slots were
    independent: `v_B ← v_B (M∘M)ᵀ`.

    Args:
        slots: The module, with the slots that were live before.
        optimiser: The optimiser, or a wrapper of it.
        a_map: M, (kept, live).
        b_map: N, (live, kept).
    """
    live, kept = slots.live, a_map.shape[0]
    for parameter, change in ((slots.a, b_map.mT), (slots.b, a_map)):  # both (kept, live)
        for key, tensor in _per_entry(_state(optimiser, parameter), parameter):
            values = tensor if parameter is slots.a else tensor.mT
            factor = (change.square() if key in _SECOND_MOMENTS else change).to(values)
            moved = factor @ values[live]
            values.zero_()
            values[:kept] = moved


def _state(optimiser: Any, parameter: nn.Parameter) -> dict[str, Any]:
    optimiser = getattr(optimiser, "optimizer", optimiser)  # accelerate wraps it
    return optimiser.state.get(parameter, {}) if optimiser is not None else {}


def _per_entry(state: dict[str, Any], parameter: nn.Parameter) -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
            yield key, value


def _is_known(state: dict[str, Any], parameter: nn.Parameter) -> bool:
    """Whether every tensor of the state has the shape of the parameter, or is one number."""
    return all(v.shape == parameter.shape for v in state.values() if isinstance(v, Tensor) and v.numel() > 1)


def _basis(columns: Tensor) -> Tensor | None:
    """An orthonormal basis of the span of some columns; None where there are none."""
    if not columns.shape[1]:
        return None
    found: Tensor = torch.linalg.qr(columns.float()).Q
    return found
