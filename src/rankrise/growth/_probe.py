"""The gradient outside the adapter, read through empty slots while training goes on.

Symbols:
    G_b     gradient of the loss on micro-batch b with respect to a module's whole weight, (out, in); never formed
    u, v    a direction of the outputs and one of the inputs, both outside what the adapter spans
    s_b     u_iᵀ G_b v_i

With `A[probe] = V` and `B[:, probe] = 0` a module's output is unchanged, and the gradient of `B[:, probe]` is `G Vᵀ`.
With the roles exchanged the gradient of `A[probe]` is `Uᵀ G`. A window has three parts: random V gives U, one step of
power iteration on other micro-batches gives (u_i, v_i), and micro-batches that chose neither of them give the signal

    s̄_i = mean_b s_ib,    t_i = s̄_i √n / sd_b(s_ib).

So s̄ is about 0 where the gradient is noise, whereas the largest singular value of a mean gradient is not. A signal
counts if t is so large that noise passes somewhere in the model at one event in two hundred only: the bound is the
quantile of Student's distribution with n − 1 degrees of freedom for a chance of 0.005 divided by the number of
directions (Bonferroni).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.growth._slots import Slots

PARTS = ("right", "left", "signal")
_BY_CHANCE = 0.005  # share of events at which noise may grow something
_SUMS = ("first", "second", "signal", "signal_squares")


@dataclass(frozen=True, eq=False)
class Candidate:
    """One direction outside a module's adapter, and how strongly the loss asks for it."""

    module: str
    direction: Tensor  # v, (in,), of unit norm
    signal: float  # s̄
    t: float
    count: int  # n, the number of micro-batches
    column: Tensor  # (out,): mean of G_b v over micro-batches
    column_squares: Tensor  # (out,): mean of the squares of G_b v over micro-batches
    row_squares: Tensor  # (in,): squares of the mean of uᵀ G_b


class ModuleProbe:
    """The sketches of one module in one window."""

    def __init__(self, slots: Slots, seed: int) -> None:
        self.slots = slots
        self.part = "right"
        count = min(slots.num_probes, slots.room)
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(max(count, 1), slots.a.shape[1], generator=generator).to(slots.a.device)
        self.v = _orthonormal_rows(slots.outside_rows(rows))[:count]
        self.u = torch.zeros(slots.b.shape[0], count, device=slots.b.device)
        self.left = torch.zeros_like(self.v)  # uᵀ G, as the part "left" of the window gives it
        self.count = 0
        self.sums: dict[str, Tensor] = {}
        self._reset()
        self._hooks: list[Any] = []

    def _reset(self) -> None:
        self.count = 0
        shape = self.v.shape if self.part == "left" else self.u.shape
        number = self.v.new_zeros(len(self.v))
        zeros = (torch.zeros(shape, device=self.v.device), torch.zeros(shape, device=self.v.device))
        self.sums = dict(zip(_SUMS, (*zeros, number, number.clone()), strict=True))

    def open(self) -> None:
        """Write the probe and hook onto the gradients.

        This is repeated after every update of the optimiser, because weight decay may have shrunk the probe.
        """
        if not self._hooks and len(self.v):
            a, b = self.slots.a, self.slots.b
            self._hooks = [a.register_hook(self._on_a), b.register_hook(self._on_b)]  # type: ignore[no-untyped-call]
        is_left = self.part == "left"
        self.slots.fill_probe(None if is_left else self.v, self.u if is_left else None)

    def close(self) -> None:
        """Empty the probe."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.slots.fill_probe(None, None)

    def _on_a(self, gradient: Tensor) -> Tensor:
        begin = self.slots.num_slots
        if self.part == "left":
            self._add(gradient[begin : begin + len(self.v)].float())
        return _without(gradient, begin, dim=0)

    def _on_b(self, gradient: Tensor) -> Tensor:
        begin = self.slots.num_slots
        if self.part != "left":
            self._add(gradient[:, begin : begin + len(self.v)].float())
        return _without(gradient, begin, dim=1)

    def _add(self, sketch: Tensor) -> None:
        """Add one micro-batch; entries that are not finite become zero, so that nothing has to wait for the device."""
        sketch = torch.nan_to_num(sketch, nan=0.0, posinf=0.0, neginf=0.0)
        self.count += 1
        self.sums["first"] += sketch
        if self.part == "signal":
            self.sums["second"] += sketch.square()
            signal = (self.u * sketch).sum(0)
            self.sums["signal"] += signal
            self.sums["signal_squares"] += signal.square()

    def advance(self) -> None:
        """End a part of the window, with the sums over all processes, and begin the next."""
        mean = self.sums["first"] / max(self.count, 1)
        if self.part == "right":
            self.u = _orthonormal_rows(self.slots.outside_columns(mean).mT).mT
            self.part = "left"
        else:
            w, _, vh = torch.linalg.svd(self.slots.outside_rows(mean), full_matrices=False)
            self.left = w.mT @ mean
            self.u, self.v = self.u @ w, vh
            self.part = "signal"
        self._reset()

    def candidates(self) -> list[Candidate]:
        """Return the directions that the window found, the strongest first."""
        n = self.count
        if n < 2:
            return []
        mean = self.sums["signal"] / n
        variance = ((self.sums["signal_squares"] / n - mean.square()) * n / (n - 1)).clamp_min(0)
        t = (mean / (variance / n).sqrt()).tolist()
        first, second = self.sums["first"] / n, self.sums["second"] / n
        return [
            Candidate(self.slots.name, self.v[i], s, t[i], n, first[:, i], second[:, i], self.left[i].square())
            for i, s in enumerate(mean.tolist())
            if math.isfinite(t[i])
        ]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the window."""
        kept = {"u": self.u, "v": self.v, "left": self.left, **self.sums}
        return {"part": self.part, "count": self.count, "tensors": {k: t.clone() for k, t in kept.items()}}

    def load(self, state: dict[str, Any], *, is_first: bool) -> None:
        """Go on from a checkpoint; its sums, which are over all processes, go to the first process."""
        self.part = state["part"]
        tensors = {key: tensor.to(self.v.device) for key, tensor in state["tensors"].items()}
        self.u, self.v, self.left = tensors["u"], tensors["v"], tensors["left"]
        self._reset()
        if is_first:
            self.count, self.sums = state["count"], {key: tensors[key] for key in _SUMS}


def needed_t(candidates: Sequence[Candidate]) -> float:
    """How many standard errors above zero a signal must be, so that noise passes at one event in two hundred only."""
    if not candidates:
        return math.inf
    from scipy.stats import t

    return float(t.isf(_BY_CHANCE / len(candidates), min(c.count for c in candidates) - 1))


def sum_over_processes(probes: Sequence[ModuleProbe]) -> list[tuple[int, dict[str, Tensor]]]:
    """Return counts and sums of every module over all processes; every process gets those of the first process."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return [(probe.count, probe.sums) for probe in probes]
    tensors = [tensor for probe in probes for tensor in probe.sums.values()]
    counts = torch.tensor([float(probe.count) for probe in probes], device=tensors[0].device)
    flat = torch.cat([counts, *(tensor.flatten() for tensor in tensors)])
    dist.all_reduce(flat)
    dist.broadcast(flat, 0)
    pieces = iter(torch.split(flat[len(probes) :], [tensor.numel() for tensor in tensors]))
    return [
        (int(count), {key: next(pieces).view_as(tensor).clone() for key, tensor in probe.sums.items()})
        for count, probe in zip(flat[: len(probes)].tolist(), probes, strict=True)
    ]


def _without(gradient: Tensor, begin: int, *, dim: int) -> Tensor:
    """Return the gradient with zeros for the probe, so that it moves no probe and does not count in clipped norms."""
    gradient = gradient.clone()
    gradient.narrow(dim, begin, gradient.shape[dim] - begin).zero_()
    return gradient


def _orthonormal_rows(rows: Tensor) -> Tensor:
    found: Tensor = torch.linalg.qr(rows.mT.float()).Q.mT
    return found
