"""`Growth`: called after every optimiser step, it watches the outside gradient, switches slots on, and cuts once."""

import math
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn

from rankrise.checkpoints import allocate_ranks
from rankrise.growth._cut import AddedSpectrum, cut_module, spectrum_of
from rankrise.growth._model import check_model, find_slots, plan_of, unwrapped
from rankrise.growth._probe import PARTS, Candidate, ModuleProbe, needed_t, sum_over_processes
from rankrise.growth._schedule import Schedule, growth_schedule
from rankrise.growth._slots import NORM, Slots, seed_state

PER_MODULE = 4  # most slots that one module may get at one event
_QUIET = 2  # after this many events without growth there are no more events
_VERSION = 1

Kind = Literal["grow", "refuse", "cut", "fallback", "stop"]


@dataclass(frozen=True)
class Decision:
    """One change that was made or refused, and why."""

    step: int
    kind: Kind
    module: str | None  # None for a decision about all modules
    slot: int | None
    signal: float | None  # s̄ of the direction
    t: float | None
    rank: int | None  # rank of the module after the decision
    reason: str


class Growth:
    """Grows and cuts the ranks of a LoRA while it trains; the result is a LoRA of the same number of parameters.

    Between windows a step costs nothing but the part of the empty slots in the matrix products. `history` has every
    decision, and `ranks` the rank of every module.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: Any,
        *,
        total_steps: int,
        accumulate: int = 1,
        events: int | None = None,
        seed: int = 0,
    ) -> None:
        """Prepare a model of `growing_lora`; call this before the first step, and `step()` after each.

        Args:
            model: What `growing_lora` returned, wrapped by DDP or not.
            optimiser: The optimiser of the model. With Adam and its variants a slot that wakes gets the state that it
                would have if it had been live from the start.
            total_steps: Optimiser steps of the whole training.
            accumulate: Number of micro-batches of an optimiser step in this process.
            events: How many times something may grow; by default 8, or 3 for the mode "early".
            seed: Seed of the random directions that begin a window.

        Raises:
            ValueError: The model is no plain LoRA with room to grow, it is sharded, or the training is too short.
        """
        self._slots = {slots.name: slots for slots in find_slots(model)}
        self._optimiser, self._accumulate, self._seed = optimiser, accumulate, seed
        self._world = check_model(model, self._slots.values())
        plan = plan_of(model)
        self.rank = plan.rank
        self.schedule: Schedule = growth_schedule(
            plan.mode, total_steps, over=plan.over, per_step=accumulate * self._world, events=events
        )
        self.history: list[Decision] = []
        self.step_count = 0
        self._quiet = 0
        self._probes: list[ModuleProbe] = []
        self._said = False
        if self.schedule.opens_at(0):
            self._open()
        _OF_MODEL[unwrapped(model)] = self

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of every module now."""
        return {name: len(slots.live) for name, slots in self._slots.items()}

    @property
    def budget(self) -> int:
        """How many parameters the result may have."""
        return self.rank * sum(slots.cost for slots in self._slots.values())

    @property
    def parameters(self) -> int:
        """How many parameters the live slots have now."""
        return sum(slots.cost * len(slots.live) for slots in self._slots.values())

    def step(self) -> None:
        """Count one optimiser step, and watch the gradient, grow or cut where the schedule says so."""
        self.step_count += 1
        if self._probes:
            self._watch()
        if self.schedule.opens_at(self.step_count) and self._quiet < _QUIET:
            self._open()
        if self.step_count == self.schedule.cut_at:
            self._cut()

    def _open(self) -> None:
        number = sum(event - self.schedule.window < self.step_count for event in self.schedule.events)
        self._probes = [
            ModuleProbe(slots, self._seed + 1_000_003 * number + 7919 * i)
            for i, slots in enumerate(self._slots.values())
        ]
        for probe in self._probes:
            probe.open()

    def _watch(self) -> None:
        """Go on with the window: write the probe again, begin the next part of the window, or end it."""
        m, part = self.schedule.micro_batches, self._probes[0].part
        opened = next(e for e in self.schedule.events if e >= self.step_count) - self.schedule.window
        passed = (self.step_count - opened) * self._accumulate * self._world
        steps = [-(-size // (self._accumulate * self._world)) for size in (m, m, 2 * m)]
        ends = [sum(steps[: i + 1]) * self._accumulate * self._world for i in range(3)]
        if passed < ends[PARTS.index(part)]:
            for probe in self._probes:
                probe.open()
            return
        for probe, (count, sums) in zip(self._probes, sum_over_processes(self._probes), strict=True):
            probe.count, probe.sums = count, sums
        if part != "signal":
            for probe in self._probes:
                probe.advance()
                probe.open()
            return
        candidates = [candidate for probe in self._probes for candidate in probe.candidates()]
        for probe in self._probes:
            probe.close()
        self._probes = []
        self._grow(candidates)

    def _grow(self, candidates: list[Candidate]) -> None:
        costs = {name: slots.cost for name, slots in self._slots.items()}
        candidates.sort(key=lambda c: -(c.signal**2) / costs[c.module])
        number = self.schedule.events.index(self.step_count)
        final = self.budget * (1 if self.schedule.cut_at is None else self.schedule.over)
        allowance = (final - self.parameters) / (len(self.schedule.events) - number)
        spent, woken, needed = 0, 0, needed_t(candidates)
        per_module: dict[str, int] = {}
        for c in candidates:
            slots = self._slots[c.module]
            reason = None
            if c.t <= needed:
                reason = f"its signal is {c.t:.2f} standard errors above zero, and not more than {needed:.2f}"
            elif not slots.room:
                reason = "all slots of the module are in use"
            elif per_module.get(c.module, 0) >= PER_MODULE:
                reason = f"the module got {PER_MODULE} slots at this event"
            elif (spent and spent + slots.cost > allowance) or self.parameters + slots.cost > final:
                reason = "stronger candidates used up what this event may spend"
            if reason is not None:
                self._note("refuse", c.module, None, c.signal, c.t, reason)
                continue
            slot = slots.wake(c.direction)
            self._seed_slot(slots, slot, c)
            spent, woken = spent + slots.cost, woken + 1
            per_module[c.module] = per_module.get(c.module, 0) + 1
            self._note("grow", c.module, slot, c.signal, c.t, "the loss asks for a direction outside the adapter")
        self._quiet = 0 if woken else self._quiet + 1
        if self._quiet == _QUIET:
            self._note("stop", None, None, None, None, f"nothing was eligible in {_QUIET} events running")
        is_last = self._quiet >= _QUIET or number == len(self.schedule.events) - 1
        if is_last and not self.parameters:
            self._fall_back()

    def _seed_slot(self, slots: Slots, slot: int, found: Candidate) -> None:
        """Set the second moments of a woken slot to those of the gradients that the optimiser will see.

        They are estimated from the gradients of single micro-batches in the window.
        """
        per_step, share = self._accumulate * self._world, 1 / self._world
        variance = (found.column_squares - found.column.square()).clamp_min(0)
        column = NORM**2 * share**2 * (per_step * variance + (per_step * found.column).square())
        length = self._usual_column() ** 2
        row = length * (share * per_step) ** 2 * found.row_squares
        if not seed_state(slots, slot, self._optimiser, column, row) and not self._said:
            self._said = True
            warnings.warn(
                f"The state of {type(self._optimiser).__name__} has no entry for each weight, so that slots which wake "
                "cannot be given theirs: their first updates may be several times too large. AdamW is exact.",
                stacklevel=4,
            )

    def _usual_column(self) -> float:
        """Median norm of the learned columns of B; while there is none, the norm that thirty updates would give one."""
        norms = torch.cat([s.b.detach()[:, s.live].norm(dim=0) for s in self._slots.values()])
        norms = norms[norms > 0]
        if len(norms):
            return float(norms.median())
        groups = getattr(self._optimiser, "param_groups", [{"lr": 1e-3}])
        outputs = sum(s.b.shape[0] for s in self._slots.values()) / len(self._slots)
        return 30 * float(groups[0]["lr"]) * math.sqrt(outputs)

    def _fall_back(self) -> None:
        """Begin as an ordinary LoRA where nothing was found, so that the result is a LoRA of one rank."""
        generator = torch.Generator().manual_seed(self._seed)
        for slots in self._slots.values():
            for _ in range(min(self.rank, slots.room)):
                row = torch.rand(slots.a.shape[1], generator=generator) * 2 - 1
                slots.wake(row * math.sqrt(3 / len(row)))
        self._note("fallback", None, None, None, None, "nothing was eligible: every module gets random rows")

    def _cut(self) -> None:
        if self.parameters <= self.budget:
            self._note("cut", None, None, None, None, "the adapter is within its budget: nothing to cut")
            return
        spectra: dict[str, AddedSpectrum] = {n: spectrum_of(s) for n, s in self._slots.items() if s.live}
        squares = [spectrum.squares for spectrum in spectra.values()]
        found = allocate_ranks(squares, [self._slots[name].cost for name in spectra], self.budget)
        for (name, spectrum), rank in zip(spectra.items(), found.ranks, strict=True):
            before = len(self._slots[name].live)
            cut_module(self._slots[name], spectrum, rank, self._optimiser)
            self._note("cut", name, None, None, None, f"from rank {before} to what its singular values are worth")

    def _note(
        self, kind: Kind, module: str | None, slot: int | None, signal: float | None, t: float | None, reason: str
    ) -> None:
        rank = None if module is None else len(self._slots[module].live)
        self.history.append(Decision(self.step_count, kind, module, slot, signal, t, rank, reason))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold beside the model and the optimiser.

        Call this in every process, because the sums of all processes are added.
        """
        sums = sum_over_processes(self._probes) if self._probes else []
        probes = []
        for probe, (count, tensors) in zip(self._probes, sums, strict=True):
            state = probe.state()
            probes.append({**state, "count": count, "tensors": {**state["tensors"], **tensors}})
        return {
            "version": _VERSION,
            "step": self.step_count,
            "quiet": self._quiet,
            "live": {name: slots.live for name, slots in self._slots.items()},
            "history": [asdict(decision) for decision in self.history],
            "probes": probes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, from which the model and the optimiser must have been loaded already.

        Raises:
            ValueError: The state is of another version or of another model.
        """
        if state.get("version") != _VERSION or state["live"].keys() != self._slots.keys():
            raise ValueError("The state must be of this model and version of rankrise; it has other modules.")
        for probe in self._probes:
            probe.close()
        self.step_count, self._quiet = state["step"], state["quiet"]
        self.history = [Decision(**decision) for decision in state["history"]]
        for name, live in state["live"].items():
            slots = self._slots[name]
            slots.is_live = [k in live for k in range(slots.num_slots)]
        self._probes = []
        if state["probes"]:
            is_first = self._world == 1 or torch.distributed.get_rank() == 0
            self._probes = [ModuleProbe(slots, 0) for slots in self._slots.values()]
            for probe, saved in zip(self._probes, state["probes"], strict=True):
                probe.load(saved, is_first=is_first)
                probe.open()


_OF_MODEL: "weakref.WeakKeyDictionary[nn.Module, Growth]" = weakref.WeakKeyDictionary()


def growth_of(model: nn.Module) -> Growth | None:
    """The `Growth` that was made last for a model."""
    return _OF_MODEL.get(unwrapped(model))
