"""The flow at any α: graded columns, followed through transitions by their map and across plateaus exactly.

Symbols:
    Z_j         [A_j; B_j] = columns e^ℓ_c z_c, orthogonal; dZ_j/dt = H_j Z_j
    Φ_j         map of all columns over a stretch of time, dΦ_j/dt = H_j(M) Φ_j from the identity; M from Φ_j Z_j
    δ           column length below which a column does not show in M: its part of M is δ²
    w, ŵ        sizes of the last direction of a square product, carried by volumes (see `_last_direction`)
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.integrate import DOP853

from rankrise.theory._rosenbrock import Array
from rankrise.theory._status import Status
from rankrise.theory.matrix._active_flow import ActiveFlow, Factors, Settled, Step
from rankrise.theory.matrix._flow_record import Crossings, drift, log_spectrum, spectrum
from rankrise.theory.matrix._last_direction import LastDirection
from rankrise.theory.matrix._matrix_network import MatrixNetwork
from rankrise.theory.matrix._propagators import GradedColumns, off
from rankrise.theory.matrix._waiting import Waiting

_DELTA = math.log(1e-7)  # log δ
_BELOW = 5.0  # columns down to δ e^-5 are part of M within a stretch, in which they may grow
_GROWTH = 2.0  # a stretch ends after a growth of about e^2
_MOST_STEPS = 12  # or after this many steps
_CLEAR = 4.0  # a plateau starts only if waiting columns are shorter than δ by e^4
_REST = 1e-3  # a column rests once |H z| is below this part of the scale
_SETTLING = 1e-8  # tolerance of the implicit method that settles
_SETTLING_STEPS = 400
_BALANCED = -69.0  # log of α² at which balanced and exact columns cannot be told apart in float64
_APART = 9.5  # volumes take over once the last two columns differ by e^9.5: they neglect the square of the ratio
_CLOSE = 8.0  # and give back below e^8
_FALLING = 7.0, 5.0  # the same two while the last column shrinks, when it may be turning
_AHEAD = 8.0  # log(w/ŵ) from which volumes may take over
_DIGITS = 7.0  # a column has lost ŵ once log(w/ŵ) exceeds log(1/rtol) less this
_TURN = 3.0  # a column that has lost ŵ and shrinks by e^3 is turning


class GradedFlow:
    """One run, with its records so far."""

    def __init__(
        self,
        net: MatrixNetwork,
        starts: Sequence[Array],
        *,
        log_alpha: float,
        end: float,
        due: Sequence[float],
        threshold: float,
        rtol: float,
        max_steps: int,
    ) -> None:
        self.flow, self.end, self.due = ActiveFlow(net), end, list(due)
        self.rows = [shape[0] for shape in net.shapes]
        self.log_alpha, self.rtol, self.max_steps = log_alpha, rtol, max_steps
        self.parts = [Waiting(z, log_alpha, d) for z, d in zip(starts, self.rows, strict=True)]
        self.longest_last, self.last_before = [-math.inf] * len(starts), [-math.inf] * len(starts)
        self.crossings = Crossings(len(starts), threshold)
        self.records: list[tuple[list[Array], list[float], float]] = []
        self.recorded: list[GradedColumns] = [part.columns for part in self.parts]
        self.turned: set[int] = set()
        self.lost, self.memory = False, -math.log(rtol) - _DIGITS
        self.t, self.h, self.bar, self.num_steps = 0.0, 0.0, _REST, 0
        empty = tuple(np.zeros((len(z), 0)) for z in starts)
        self.scale = max(float(np.linalg.norm(g, 2)) for g in self.flow.gradients(empty)[1]) or 1.0

    def run(self) -> Status:
        """Follow the flow to its end."""
        while self.due and self.due[0] <= 0:
            self._record([part.columns for part in self.parts])
        while self.t < self.end:
            if self.num_steps >= self.max_steps:
                return Status.MAX_STEPS
            self._watch()
            if self._plateau():
                continue
            if not self._stretch():
                return Status.STALLED
        return Status.SIGN_FLIP if self.lost else Status.FINISHED

    def _stretch(self) -> bool:
        """Follow all columns for a few steps by the map Φ; False if no step is short enough."""
        shown = [self._shown(part.columns, _DELTA - _BELOW) for part in self.parts]
        sizes = [len(z) for z in shown]
        splits = np.cumsum([n * n for n in sizes])[:-1]

        def maps_of(y: Array) -> list[Array]:
            return [part.reshape(n, n) for part, n in zip(np.split(y, splits), sizes, strict=True)]

        def slope(_: float, y: Array) -> Array:
            maps = maps_of(y)
            gradients = self.flow.gradients(tuple(m @ z for m, z in zip(maps, shown, strict=True)))[1]
            moved = [np.concatenate([g @ m[len(g) :], g.T @ m[: len(g)]]) for g, m in zip(gradients, maps, strict=True)]
            return np.concatenate([m.ravel() for m in moved])

        identity = np.concatenate([np.eye(n).ravel() for n in sizes])
        first = min(self.h, self.end - self.t) if self.h else None
        solver: Any = DOP853(slope, self.t, identity, self.end, rtol=self.rtol, atol=self.rtol, first_step=first)
        speed = max(
            float(np.linalg.norm(g.reshape(n, n), 2)) for g, n in zip(np.split(solver.f, splits), sizes, strict=True)
        )
        for _ in range(_MOST_STEPS):
            solver.step()
            if solver.status == "failed":
                return False
            self.num_steps += 1
            self._look(solver, shown, maps_of)
            if solver.status == "finished" or speed * (solver.t - self.t) > _GROWTH:
                break
        self.h, self.t = max(float(solver.h_abs), 0.0), self.end if solver.status == "finished" else float(solver.t)
        for part, matrix in zip(self.parts, maps_of(solver.y), strict=True):
            before = copy.copy(part.columns)
            part.columns.apply(matrix)
            if part.last is not None:
                none = np.zeros((len(matrix), 0))
                part.last.carry(matrix, before, none, part.columns, none)
            if 2 * self.log_alpha + math.log(np.abs(part.conserved).max() + 1e-300) < _BALANCED:
                _rebalance(part.columns, part.d)
        return True

    def _look(self, solver: Any, shown: Sequence[Array], maps_of: Any) -> None:
        """Record what is due within the last step, and passages of the threshold."""
        between: list[Any] = []

        def maps_at(t: float) -> list[Array]:
            if t == solver.t:
                return list(maps_of(solver.y))
            if not between:
                between.append(solver.dense_output())
            return list(maps_of(between[0](t)))

        def spectra(t: float) -> list[Array]:
            return [spectrum(m @ z, d) for m, z, d in zip(maps_at(t), shown, self.rows, strict=True)]

        self.crossings.step(float(solver.t_old), float(solver.t), spectra)
        at, y = float(solver.t_old), solver.y_old
        while self.due and (self.due[0] <= solver.t or solver.status == "finished"):
            # The interpolant of a long step is far less accurate than the step: another step ends at the time itself.
            if self.due[0] >= solver.t:
                at, y = float(solver.t), solver.y
            elif self.due[0] > at:
                short: Any = DOP853(
                    solver.fun, at, y, self.due[0], rtol=self.rtol, atol=self.rtol, first_step=self.due[0] - at
                )
                while short.status == "running":
                    short.step()
                at, y = self.due[0], short.y
            columns = [copy.copy(part.columns) for part in self.parts]
            for graded, matrix in zip(columns, maps_of(y), strict=True):
                graded.apply(matrix)
            self._record(columns)

    def _plateau(self) -> bool:
        """Settle on a stationary point and stay there until a column has grown to δ; False if nothing rests."""
        if 2 * self.log_alpha > math.log(1e-16):
            return False  # columns are not balanced closely enough
        counts = [int((part.columns.logs > _DELTA).sum()) for part in self.parts]
        waiting = [part.columns.logs[k:] for k, part in zip(counts, self.parts, strict=True)]
        if any(len(logs) and logs[0] > _DELTA - _CLEAR for logs in waiting):
            return False
        active = tuple(self._shown(part.columns, _DELTA) for part in self.parts)
        loss, gradients = self.flow.gradients(active)
        speeds = [0.0]
        for g, z in zip(gradients, active, strict=True):
            if z.shape[1]:
                units = z / np.linalg.norm(z, axis=0)
                moved = np.concatenate([g @ units[len(g) :], g.T @ units[: len(g)]])
                speeds.append(float(np.linalg.norm(moved, axis=0).max()))
        if max(speeds) > self.bar * self.scale:
            return False
        settled = Settled(active, loss, gradients, math.inf, (), (), Status.FINISHED)
        if any(counts):
            settled = self.flow.settle(active, scale=self.scale, rtol=_SETTLING, max_steps=_SETTLING_STEPS)
        self.bar = 0.1 * max(speeds) / self.scale
        if settled.status is not Status.FINISHED or settled.left:
            return False
        parts = [self._outside(part, z) for part, z in zip(self.parts, active, strict=True)]
        return self._settle(parts, active, settled) and self._wait(parts, active, settled)

    def _outside(self, part: Waiting, active: Array) -> Waiting | None:
        """Return the columns that wait beside active ones; None if there is no direction left for them."""
        count = active.shape[1]
        if count >= min(part.d, len(active) - part.d) or count == len(part.columns.logs):
            return None
        outside = copy.copy(part)
        columns, outside.last = part.columns, copy.copy(part.last)
        outside.columns = GradedColumns(columns.units[:, count:], columns.logs[count:], columns.rows[:, count:])
        outside.active = active
        outside.columns.apply(off(active, part.d))
        return outside

    def _settle(self, parts: list[Waiting | None], active: Factors, settled: Settled) -> bool:
        """Carry waiting columns along the way to rest; False, and nothing done, if one of them shows before the end."""
        path = [copy.deepcopy(parts)]
        for step in settled.steps:
            path.append(copy.deepcopy(path[-1]))
            for j, part in enumerate(path[-1]):
                if part is not None:
                    part.carry(step, j)
        if any(part is not None and part.longest > _DELTA + 1.0 for part in path[-1]):
            return False
        for step, there in zip(settled.steps, path[:-1], strict=True):
            low = self.t + step.time

            def spectra(now: float, step: Step = step, low: float = low) -> list[Array]:
                return [spectrum(z, d) for z, d in zip(step.at((now - low) / step.duration), self.rows, strict=True)]

            self.crossings.step(low, low + step.duration, spectra)
            while self.due and self.due[0] <= low + step.duration:
                x = max(0.0, (self.due[0] - low) / step.duration)
                now = copy.deepcopy(there)
                for j, part in enumerate(now):
                    if part is not None:
                        part.carry(replace(step, duration=x * step.duration), j)
                self._record(self._merged(now, self.flow.between(step, x), active))
        parts[:] = path[-1]
        self.t += settled.duration
        self.num_steps += len(settled.steps)
        return True

    def _wait(self, parts: Sequence[Waiting | None], active: Factors, settled: Settled) -> bool:
        """Jump to the time at which the first column has the length δ."""
        wait = self.end - self.t
        for part, g, z in zip(parts, settled.gradients, settled.factors, strict=True):
            if part is None:
                continue
            part.outside(g, z)
            if _has_last(part) and part.last is None and self._ahead(part, z.shape[1]) > self.memory:
                followed = self._followed(part, z)
                ahead = np.linalg.slogdet(z[: part.d] @ z[part.d :].T + part.h[: part.d, part.d :])[0]
                if followed.family * ahead < 0 and part.square and _gap(part) > _FALLING[0]:
                    part.last = followed
                self.lost = self.lost or bool(followed.family * ahead < 0 and part.last is None)
            if part.sigma[0] > 1e-9 * self.scale:
                wait = min(wait, copy.deepcopy(part).time_to(_DELTA, float(part.sigma[0]), 0.0))
        stop = self.t + max(0.0, wait)
        while True:
            now = min(stop, self.due[0]) if self.due else stop
            for part in parts:
                if part is not None:
                    part.advance(now - self.t)
            self.t = now
            merged = self._merged(parts, settled.factors, active)
            if not self.due or self.due[0] > now:
                break
            self._record(merged, settled.loss)
        for j, (part, old, columns) in enumerate(zip(parts, self.parts, merged, strict=True)):
            old.columns = columns
            old.last = None if part is None else part.last
            if part is not None and part.last is not None and part.last.log_partner > part.last.log_w:
                self.turned.add(j)
        self.bar, self.h = _REST, 0.0
        return True

    def _merged(self, parts: Sequence[Waiting | None], factors: Factors, active: Factors) -> list[GradedColumns]:
        """Return all columns, the active ones turned as they were."""
        merged = []
        for part, old, z, before in zip(parts, self.parts, factors, active, strict=True):
            count = z.shape[1]
            u, _, vt = np.linalg.svd(z.T @ before)
            rest = old.columns if part is None else part.columns
            low = count if part is None else 0
            columns = GradedColumns(
                np.hstack([z @ (u @ vt), rest.units[:, low:]]),
                np.concatenate([np.zeros(count), rest.logs[low:]]),
                np.hstack([old.columns.rows[:, :count], rest.rows[:, low:]]),
            )
            columns.orthogonalise()
            merged.append(columns)
        return merged

    def _watch(self) -> None:
        """Hand last directions over to volumes and back, and note the turns that neither could follow."""
        for j, part in enumerate(self.parts):
            if not _has_last(part):
                continue
            gap, ahead, last = _gap(part), self._ahead(part, 0), float(part.columns.logs[part.d - 1])
            falling, self.last_before[j] = last < self.last_before[j], last
            follow, let_go = _FALLING if falling else (_APART, _CLOSE)
            if part.last is not None:
                if part.last.log_partner > part.last.log_w:
                    self.turned.add(j)
                if (gap < let_go and abs(part.last.log_partner - part.last.log_w) > _AHEAD) or gap < _FALLING[1]:
                    part.last, self.longest_last[j] = None, -math.inf
            elif part.square and gap > follow and ahead > _AHEAD:
                part.last = self._followed(part, np.zeros((len(part.columns.units), 0)))
            elif ahead > self.memory or self.longest_last[j] > -math.inf:
                self.longest_last[j] = max(self.longest_last[j], last)
                self.lost = self.lost or last < self.longest_last[j] - _TURN

    def _followed(self, part: Waiting, active: Array) -> LastDirection:
        c, n = part.columns, part.d - active.shape[1]
        longest = GradedColumns(c.units[:, :n], c.logs[:n], c.rows[:, :n])
        return LastDirection.of(longest, active, part.conserved, self.log_alpha)

    def _ahead(self, part: Waiting, count: int) -> float:
        """Return log(w/ŵ) of the last direction, from the length of its column and the conserved quantity."""
        rho = part.columns.rows[:, part.d - 1 - count]
        constant = abs(float(rho @ part.conserved @ rho)) / 2 + 1e-300
        return 2 * (float(part.columns.logs[part.d - 1 - count]) - self.log_alpha) - math.log(constant)

    def _record(self, columns: list[GradedColumns], loss: float | None = None) -> None:
        shown = [self._shown(graded, -math.inf) for graded in columns]
        if loss is None:
            loss = self.flow.net.loss([z[:d] @ z[d:].T for z, d in zip(shown, self.rows, strict=True)])
        logs = [log_spectrum(graded, d) for graded, d in zip(columns, self.rows, strict=True)]
        drifts = [drift(g, part.d, part.conserved, self.log_alpha) for g, part in zip(columns, self.parts, strict=True)]
        self.records.append((logs, drifts, loss))
        self.recorded = columns
        self.due.pop(0)

    @staticmethod
    def _shown(columns: GradedColumns, above: float) -> Array:
        keep = columns.logs > above
        shown: Array = columns.units[:, keep] * np.exp(columns.logs[keep])
        return shown


def _has_last(part: Waiting) -> bool:
    """Whether a product is square with as many columns as rows, so that its last direction can turn."""
    return len(part.columns.units) == 2 * part.d <= 2 * len(part.columns.rows)


def _gap(part: Waiting) -> float:
    logs = part.columns.logs
    return float(logs[-2] - logs[-1]) if len(logs) > 1 else math.inf


def _rebalance(columns: GradedColumns, d: int) -> None:
    """Put the columns that show back where AᵀA = BᵀB, as the flow keeps them and rounding does not."""
    keep = columns.logs > _DELTA
    for part in (slice(0, d), slice(d, None)):
        if keep.any() and keep.sum() <= min(d, len(columns.units) - d):
            u, _, vt = np.linalg.svd(columns.units[part][:, keep], full_matrices=False)
            columns.units[part, keep] = (u @ vt) / math.sqrt(2.0)
