"""Stage times of a given run at finite α, from the stages of the limit and without a new gradient.

Symbols:
    Z0          the start [A; B] of each product before the factor α
    z_c, ℓ_c    graded columns that wait: units and logarithms of lengths
    ε           length of the winner's column at which phase B of the limit starts
    t           time that is not rescaled; times are returned as t / log(1/α)
"""

import copy
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._rosenbrock import Array
from rankrise.theory._status import Status
from rankrise.theory.matrix._active_flow import Factors, Step
from rankrise.theory.matrix._propagators import off
from rankrise.theory.matrix._waiting import Waiting

_UNFINISHED = 5e-5  # part of a time that the unfinished end of a transition may change before the time is flagged


class Flag(enum.Enum):
    """Why a predicted time is only approximate.

    >>> Flag.OVERLAP.value
    'overlap'
    """

    OVERLAP = "overlap"
    TURNED = "turned"
    LEFT = "left"
    TIED = "tied"
    NEVER = "never"

    @property
    def meaning(self) -> str:
        """Return what happened, in a sentence."""
        return _MEANINGS[self]


_MEANINGS = {
    Flag.OVERLAP: "A direction is ready before the transition before it has come to rest, or together with another: "
    "α is too large for separate stages here.",
    Flag.TURNED: "The last direction of a square product turned back, and float64 cannot follow it from this start.",
    Flag.LEFT: "A direction left and waits again; when it returns is taken from the limit.",
    Flag.TIED: "Two directions join at the same time in the limit, so that the stages depend on the start, which the "
    "prediction does not follow.",
    Flag.NEVER: "The singular value settles below the threshold, so that its time is infinite.",
}


@dataclass(frozen=True, eq=False)
class MatrixPrediction:
    """Predicted stage times of one run.

    Attributes:
        times: Rescaled time at which the singular value of each stage passes the threshold, (K,).
        flags: Why the time of each stage is only approximate, K tuples; empty where nothing speaks against it. A flag
            is inherited by all later stages.
        turned: The stages whose direction turned back before it joined, as the last one of a square product may.
        log10_alpha: log10 α.
        threshold: Singular value that counts as active.
        status: FINISHED, or SIGN_FLIP if a direction turned that could not be followed.
    """

    times: Tensor
    flags: tuple[tuple[Flag, ...], ...]
    turned: tuple[int, ...]
    log10_alpha: float
    threshold: float
    status: Status

    @property
    def flagged(self) -> tuple[bool, ...]:
        """Whether each time is only approximate."""
        return tuple(bool(flags) for flags in self.flags)

    def __str__(self) -> str:
        """Return the times as a table, one line each."""
        lines = [
            f"{k + 1:5d}  {time:12.6g}  {', '.join(flag.value for flag in flags)}".rstrip()
            for k, (time, flags) in enumerate(zip(self.times.tolist(), self.flags, strict=True))
        ]
        head = f"stage          time  flags (log10 α = {self.log10_alpha:g}, threshold {self.threshold:g})"
        return "\n".join([head, *lines, f"{self.status.value}: {self.status.remedy}"])


@dataclass(frozen=True)
class LimitStage:
    """What the prediction reads of one stage of the limit: the plateau before it, its winner, and its phase B."""

    matrix: int
    rank: int
    sigma: float
    wait: float
    factors: Factors
    gradients: Factors
    turning: tuple[int, ...]
    left: tuple[int, ...]
    tied: bool
    epsilon: float
    steps: tuple[Step, ...]


def predict_times(
    stages: Sequence[LimitStage], starts: Sequence[Array], rows: Sequence[int], *, log10_alpha: float, threshold: float
) -> MatrixPrediction:
    """Carry the columns of a start through the plateaus and transitions of the limit.

    On plateau k they obey dz/dt = H_k z outside the active directions; in phase B they follow its maps. The winner's
    longest column ends a plateau when its length is ε.

    Args:
        stages: The limit, stage by stage.
        starts: Z0 of each product, (d + d', r).
        rows: d of each product.
        log10_alpha: log10 α.
        threshold: Singular value that counts as active.
    """
    clock = -log10_alpha * math.log(10.0)
    waiting = [Waiting(start, -clock, d) for start, d in zip(starts, rows, strict=True)]
    t, lasted, flags, turned = 0.0, 0.0, set[Flag](), []
    times, all_flags = [], []
    for k, stage in enumerate(stages):
        for j, w in enumerate(waiting):
            w.outside(stage.gradients[j], stage.factors[j])
        winner = waiting[stage.matrix]
        if stage.tied:
            flags.add(Flag.TIED)
        if winner.empty:
            flags.add(Flag.LEFT)
            dt = stage.wait * clock
        else:
            dt = winner.time_to(math.log(stage.epsilon), stage.sigma, -lasted)
        for j, w in enumerate(waiting):
            if j != stage.matrix or winner.empty:
                w.advance(dt)
        ready = [w.longest for w in waiting if w is not winner]
        if max(ready, default=-math.inf) > math.log(stage.epsilon):
            flags.add(Flag.OVERLAP)
        if winner.turned and stage.rank == winner.d - 1:
            turned.append(k)
            if winner.last is None or not winner.last.reliable:
                flags.add(Flag.TURNED)
        t += dt
        after = _crossing(stage, threshold)
        if math.isinf(after):
            flags.add(Flag.NEVER)
        times.append((t + after) / clock)
        all_flags.append(tuple(sorted(flags, key=lambda flag: flag.value)))
        winner.drop_first()
        following = stages[k + 1] if k + 1 < len(stages) else None
        for j, w in enumerate(waiting):
            # The gradient turns within phase B, so that the column must be followed from the start of it.
            if following is not None and stage.steps and j in following.turning:
                w.follow(stage.steps[0].start[j])
        for n, step in enumerate(stage.steps):
            before = [(copy.deepcopy(w.columns), copy.deepcopy(w.last)) for w in waiting]
            for j, w in enumerate(waiting):
                w.carry(step, j)
            lasted = step.time + step.duration
            if following is None or waiting[following.matrix].longest <= math.log(following.epsilon):
                continue
            # The next direction is ready within this step: the transition ends where its column has the length ε.
            top, low = waiting[following.matrix].longest, before[following.matrix][0].logs[0]
            part = min(1.0, max(0.0, (math.log(following.epsilon) - low) / (top - low)))
            for j, w in enumerate(waiting):
                w.columns, w.last = before[j]
                w.carry(replace(step, duration=part * step.duration), j)
            lasted = step.time + part * step.duration
            if _growth_to_come(stage.steps[n:], following.gradients) > _UNFINISHED * following.sigma * (t + lasted):
                flags.add(Flag.OVERLAP)
            break
        t += lasted
    status = Status.SIGN_FLIP if Flag.TURNED in flags else Status.FINISHED
    return MatrixPrediction(
        torch.tensor(times, dtype=torch.float64), tuple(all_flags), tuple(turned), log10_alpha, threshold, status
    )


def _growth_to_come(steps: Sequence[Step], end: Factors) -> float:
    """Return ∫ |P_U (G - G_end) P_V| dt over the rest of a transition: what the logarithms of lengths still gain."""
    total = 0.0
    for step in steps:
        sizes = [0.0]
        for j, last in enumerate(end):
            d, keep = len(last), off(step.end[j], len(last))
            turns = [keep[:d, :d] @ (g - last) @ keep[d:, d:] for g in (step.first[j], step.second[j])]
            sizes += [float(np.linalg.norm(turn, 2)) for turn in turns]
        total += step.duration * max(sizes)
    return total


def _crossing(stage: LimitStage, threshold: float) -> float:
    """Return when, in phase B, the singular value of the stage passes the threshold; inf if it never does."""
    j, m = stage.matrix, stage.rank
    d = stage.gradients[j].shape[0]

    def size(factors: Factors) -> float:
        s = np.linalg.svd(factors[j][:d] @ factors[j][d:].T, compute_uv=False)
        return float(s[m])

    if stage.steps and size(stage.steps[0].start) > threshold:
        return math.log(threshold / size(stage.steps[0].start)) / (2 * stage.sigma)
    for step in stage.steps:
        if size(step.end) > threshold:
            low, high = 0.0, 1.0
            while low < (middle := 0.5 * (low + high)) < high:
                low, high = (low, middle) if size(step.at(middle)) > threshold else (middle, high)
            return step.time + high * step.duration
    return math.inf
