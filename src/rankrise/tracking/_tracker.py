"""`RankTracker`: two lines in any training loop."""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import torch
from torch import Tensor, nn

from rankrise._arguments import as_count
from rankrise.heads import HeadMap, Layout, resolve
from rankrise.tracking import _tracked_run
from rankrise.tracking._measurement import Clock, Measurement, Probe, Quantity
from rankrise.tracking._parameters import (
    InitialWeights,
    Place,
    check_place,
    is_main_process,
    is_sharded,
    names_of,
    read_weights,
    refuse_partitioned,
    signature,
)
from rankrise.tracking._quantities import choose
from rankrise.tracking._recorder import PendingScalars, Recorder, to_block
from rankrise.tracking._schedule import Schedule, as_schedule, spectra_schedule
from rankrise.tracking._sinks import Sink, check_sinks
from rankrise.tracking._stacks import MeasurementPlan, Readout
from rankrise.tracking._targets import Scope, Targets, find_targets
from rankrise.tracking._tracked_run import RunDirectoryError


@dataclass(frozen=True)
class Estimate:
    """What tracking costs here: one measurement of each kind, timed on weights moved by noise, the slowest case."""

    initial_bytes: int  # size of the initial weights in the run directory and, unless on disk, in memory
    ranks_ms: float  # time of a measurement on the clock `every`
    ranks_bytes: int  # size of the rows it writes
    spectra_ms: float  # time of a measurement on the clock `spectra`
    spectra_bytes: int  # size of its rows and directions


class RankTracker:
    """Records, for every attention head, the rank of what training has changed.

    For each layer and head: singular values and ranks of `Δ(W_K W_Qᵀ)` and `Δ(W_V W_Oᵀ)` against the weights the model
    had when the tracker was built. Those are copied, saved in the run directory, and restored on resume. Measuring
    changes nothing in training: no random number is drawn, no gradient or weight touched.

    In a distributed run every process builds a tracker and calls `step`; rank 0 measures and writes. A tracker belongs
    to the process that built it: in a forked child, such as a data loader's worker, all its methods do nothing.

    With `quantities=()` nothing is measured of the weights: only scalars and what probes read is recorded. The model
    then needs no attention.

    >>> import tempfile
    >>> import rankrise as rr
    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16)
    >>> with rr.RankTracker(model, out=tempfile.mkdtemp(), every=1) as tracker:
    ...     for step in range(1, 3):
    ...         with torch.no_grad():  # training, in real life
    ...             model.self_attn.in_proj_weight[:8] += 0.1 * torch.ones(8, 8)
    ...         tracker.step(step, loss=1 / step)
    >>> import pyarrow.compute as pc
    >>> table = rr.load_run(tracker.out)
    >>> table = table.filter((pc.field("quantity") == "stable_rank") & (pc.field("circuit") == "kq"))
    >>> [round(value, 6) for value in table["value"].to_pylist()]  # two heads, two steps
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        model: nn.Module,
        out: str | os.PathLike[str],
        *,
        every: int | Schedule = 200,
        spectra: int | Schedule | None = None,
        quantities: Iterable[str | Quantity] | None = None,
        directions: int = 8,
        matrices: bool = True,
        scope: Scope = "attention",
        weights: bool = False,
        heads: Layout | Sequence[Layout] | Callable[[nn.Module], HeadMap] | None = None,
        initial: Place = "auto",
        resume: int | None = None,
        sinks: Sequence[Sink] = (),
        probes: Sequence[Probe] = (),
        config: Mapping[str, object] | None = None,
        strict: bool = False,
        needs_folder: bool = False,
    ) -> None:
        """Copy the weights and open the run directory.

        Args:
            model: Any module `rankrise.heads.resolve` understands, wrapped or not, before its first update or resumed.
                With `quantities=()`, any module.
            out: The run directory.
            every: When to measure ranks and norms of the circuits: a number of steps, or a schedule.
            spectra: When to measure everything. By default at every tenth measurement of `every`, or at `log_spaced()`
                steps if `every` is a schedule of its own.
            quantities: What to measure of the weights, by name or as `Quantity`; all known quantities by default.
            directions: How many leading singular vectors of each circuit to follow and store; 0 for none.
            matrices: Whether to read the whole matrices q, k, v, o beside the circuits whenever spectra are due.
            scope: `attention`, or `linear`: then all other linear weights, those of MLPs and experts among them, are
                read as whole matrices too whenever spectra are due, see `rankrise.heads.linear_weights`. The model then
                needs no attention that is understood.
            weights: Whether to record the largest singular value and the stable rank of the circuits themselves too.
            heads: A `Layout` that the resolver does not know, or a function that resolves the model, e.g.
                `functools.partial(rankrise.heads.resolve, fold_norm=True)`. With `quantities=()` the model is resolved
                only if this is given, for probes that read heads.
            initial: Where the initial weights are kept: on the `device` of the model, on the `cpu`, on `disk`, or
                `auto`, which means beside the model up to 256 MB and on the CPU above.
            resume: The step of the checkpoint that was loaded. The run in `out` goes on from there; what it recorded
                later is dropped. 0 begins a run, or starts one over that was cut off and had the same weights.
            sinks: Dashboards that get a copy of every number.
            probes: Objects that read gradients or activations through hooks.
            config: A mapping that is written into `spec.json`.
            strict: Raise where otherwise a warning is given and training goes on, e.g. when the disk is full.
            needs_folder: Raise if the run directory cannot be opened, even if not `strict`.

        Raises:
            ValueError: The model or an option is not understood; the folder holds another run, or another process
                writes it; the heads of a resumed model, or at step 0 its weights, are not those of the run.
            RunDirectoryError: The folder cannot be written, and `strict` or `needs_folder` is set.
        """
        if not isinstance(model, nn.Module):
            raise ValueError(f"`model` must be a torch.nn.Module; got {type(model).__name__}.")
        self.out = Path(out)
        _tracked_run.check_folder(self.out)
        resume = None if resume is None else as_count(resume, "resume")
        self._model = model
        ranks_due = as_schedule(every)
        spectra_due = spectra_schedule(ranks_due, spectra)
        check_place(initial)
        refuse_partitioned(model)
        chosen, count = choose(quantities, weights=weights), as_count(directions, "directions")
        self._plan = MeasurementPlan(chosen, count, matrices, ranks_due, spectra_due)
        self._resolve = heads if callable(heads) else functools.partial(resolve, heads=heads)
        self._targets = Targets(None, None)
        if self._plan.quantities or heads is not None:
            self._targets = find_targets(model, self._resolve, scope, needs_heads=heads is not None)
        self.head_map: HeadMap | None = self._targets.head_map
        self._is_main = is_main_process()
        self._is_sharded = is_sharded(model)
        check_sinks(sinks)
        self._recorder = Recorder(sinks if self._is_main else (), strict=strict)
        self._pending = PendingScalars()
        self._probes = tuple(probes) if self._is_main else ()
        self._last_step = -1 if resume is None else resume
        self._last_measured = -1
        self._is_closed = False
        self._directions: dict[str, Tensor] = {}
        self._initial: InitialWeights | None = None
        self._latest: tuple[Measurement, ...] = ()
        self._process = os.getpid()

        measured = self._targets.parameters() if self._plan.quantities else ()
        self._signature = signature(model, self._targets.parameters())
        now = read_weights(model, measured, keep=self._is_main)
        if not self._is_main:
            return
        names = names_of(model)
        if self._targets.warning:
            self._recorder.say(self._targets.warning, key="no attention")
        spec = _tracked_run.spec(self.head_map, self._plan, config, names, self._targets.linear)
        start = _tracked_run.initial_weights(self.out, {names[n]: w for n, w in now.items()}, spec, resume=resume)
        with contextlib.ExitStack() as undo:  # if a later line fails, the folder is free again
            undo.callback(self._recorder.leave_run)
            try:
                self._recorder.run = _tracked_run.open_run(self.out, spec, start, resume=resume)
                with _tracked_run.opening(self.out):
                    self._directions = self._recorder.run.last_directions()
                    self._last_measured = self._recorder.run.last_measured
            except RunDirectoryError as error:
                if strict or needs_folder:
                    raise
                self._recorder.say(f"{error} Training goes on without it; this is said once.", key="opening")
            path = None if self._recorder.run is None else self._recorder.run.initial_path
            self._initial = InitialWeights(start, initial, path, names)
            for probe in self._probes:
                probe.attach(model, self.head_map)
                undo.callback(probe.detach)
            undo.pop_all()

    def step(self, step: int, /, **scalars: object) -> None:
        """Tell the tracker that `step` optimiser steps are done; it measures if it is time.

        Args:
            step: Never smaller than in the call before. The same step twice is measured once.
            scalars: Numbers to record beside: `loss=loss, lr=...`. A tensor on a GPU is not waited for.

        Raises:
            ValueError: `step` went back; the heads of the model have changed; a scalar is no number.
        """
        if not self._is_ours:
            return
        step = as_count(step, "step")
        self.log(step, **scalars)
        due = self._plan.due(step)
        if due and step != self._last_measured:
            self._last_measured = step
            self._measure_and_record(step, due)

    def log(self, step: int, /, **scalars: object) -> None:
        """Record numbers of the user at `step`, without measuring."""
        if not self._is_ours:
            return
        if self._is_closed:
            raise ValueError("The tracker must be open; it was closed. Build one with `resume=` to go on.")
        step = as_count(step, "step")
        if step < self._last_step:
            raise ValueError(
                f"`step` must not go back; got {step} after {self._last_step}. "
                f"Build the tracker with `resume={step}` to go on from an earlier checkpoint."
            )
        if self._is_main:
            self._pending.add(step, scalars)
        self._last_step = step
        if self._is_main and self._pending.are_ready:
            self.flush()

    @property
    def is_recording(self) -> bool:
        """Whether numbers go to the run directory: in the main process, if the folder could be opened."""
        return self._is_ours and self._recorder.run is not None

    @property
    def has_late_rows(self) -> bool:
        """Whether rows wait for a disk that has refused them; every later write, and `flush`, tries again."""
        return self._recorder.has_late_rows

    @property
    def latest(self) -> tuple[Measurement, ...]:
        """What was measured last, of the weights and by probes; empty before the first measurement in this process."""
        return self._latest

    def flush(self, *, sync: bool = False) -> None:
        """Write scalars that still wait; call it before saving a checkpoint if you pass some.

        Args:
            sync: Wait until all rows are on the disk; a killed process loses nothing without it, a power cut may.
        """
        if not self._is_ours:
            return
        self._recorder.record(self._last_step, self._pending.take())
        if sync:
            self._recorder.sync()

    def estimate(self) -> Estimate:
        """Time one measurement of each kind here, without recording it. Every process of a sharded model must call it.

        >>> import tempfile
        >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16)
        >>> estimate = RankTracker(model, out=tempfile.mkdtemp()).estimate()
        >>> estimate.initial_bytes  # four 8 × 8 matrices in float32
        1024
        """
        cost: dict[str, tuple[float, int]] = {}
        for clock, due in (("ranks", frozenset[Clock]({"ranks"})), ("spectra", frozenset[Clock]({"ranks", "spectra"}))):
            for _ in range(2):  # the first warms up
                self._synchronise()
                begin = time.perf_counter()
                readout = self._measure(due, noise=True)
                num_bytes = to_block(0, [], readout.measurements).nbytes
                num_bytes += sum(t.nbytes for t in readout.directions.values())
                self._synchronise()
                cost[clock] = (1e3 * (time.perf_counter() - begin), num_bytes)
        initial_bytes = 0 if self._initial is None else self._initial.num_bytes
        return Estimate(initial_bytes, *cost["ranks"], *cost["spectra"])

    def close(self, *, seal: bool = True) -> None:
        """Write what is left and seal the run to Parquet; a second call does nothing.

        Args:
            seal: False leaves the run open on disk, to be resumed: what `with` does when an exception passes.
        """
        if self._is_closed or not self._is_ours:
            return
        self._is_closed = True
        with contextlib.ExitStack() as stack:  # the run is closed whatever fails, and not sealed if something does
            stack.push(lambda kind, *_: self._recorder.close(seal=seal and kind is None))
            for probe in self._probes:
                stack.callback(self._detach, probe)
            self.flush()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A RankTracker cannot be copied or pickled, because a run directory has one writer; build a tracker in the "
            "process that trains, and pass the path `tracker.out` to others."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(seal=kind is None)

    @property
    def _is_ours(self) -> bool:
        """Whether this process built the tracker."""
        return self._process == os.getpid()

    def _detach(self, probe: Probe) -> None:
        with self._recorder.guard_all(f"Detaching {type(probe).__name__}"):
            probe.detach()

    def _measure_and_record(self, step: int, due: frozenset[Clock]) -> None:
        self._refuse_changed_heads()
        if not (self._recorder.is_wanted or self._is_sharded):
            return
        readout = self._measure(due)
        if not self._is_main:
            return
        if readout.directions:
            self._directions = readout.directions
            self._recorder.save_directions(step, readout.directions)
        self._latest = (*readout.measurements, *self._read_probes(step))
        self._recorder.record(step, self._pending.take(), self._latest, sync="spectra" in due)

    def _refuse_changed_heads(self) -> None:
        """Resolve the model again only if its signature changed: resolving costs as much as measuring ranks."""
        if not self._targets.parameters():
            return
        now = signature(self._model, self._targets.parameters())
        if now != self._signature:
            self._targets.refuse_changed(self._model, self._resolve)
            self._signature = now

    def _read_probes(self, step: int) -> list[Measurement]:
        """What the probes measured; plain numbers go to the scalars that wait. A probe that fails gives nothing."""
        measurements: list[Measurement] = []
        for probe in self._probes:
            with self._recorder.guard_all(f"Reading {type(probe).__name__}"):
                read = probe.read(step)
                if isinstance(read, Mapping):
                    self._pending.add(step, read)
                    continue
                for entry in read:
                    if not isinstance(entry, Measurement):
                        raise ValueError(f"`read` must return measurements; got {type(entry).__name__}")
                measurements += read
        return measurements

    @torch.no_grad()
    def _measure(self, due: frozenset[Clock], *, noise: bool = False) -> Readout:
        """Gather and measure group by group. Errors on the main process do not stop the gathering."""
        total = Readout()
        if not self._plan.quantities:
            return total
        device = next(self._model.parameters()).device
        for names, read in self._targets.readings(due, device, self._directions):
            now = read_weights(self._model, names, keep=self._is_main and (noise or self._recorder.is_wanted))
            if self._initial is None or not now:
                continue
            if noise:
                now = {name: _moved(weight) for name, weight in now.items()}
            with self._recorder.guard("Measuring"):
                readout = read(now, self._initial, plan=self._plan, guard=self._recorder.guard_all)
                total.measurements += readout.measurements
                total.directions |= readout.directions
                self._warn_of_non_finite(readout.not_finite)
        return total

    def _warn_of_non_finite(self, places: Sequence[str]) -> None:
        if places:
            more = len(places) - 1
            self._recorder.say(
                f"The weights must be finite; at step {self._last_step} those of {places[0]}"
                f"{f' and {more} more' if more else ''} are not. Recorded as NaN; this is said once.",
                key="not finite",
            )

    def _synchronise(self) -> None:
        if any(parameter.is_cuda for parameter in self._model.parameters()):
            torch.cuda.synchronize()


def _moved(weight: Tensor) -> Tensor:
    """The weight with noise of a thousandth of its size: a flat spectrum, the slowest case."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32, device="cpu").to(weight)
    return weight + 1e-3 * weight.abs().mean() * noise
