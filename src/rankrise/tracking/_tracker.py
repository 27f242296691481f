"""`RankTracker`: two lines in any training loop."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import torch
from torch import Tensor, nn

from rankrise._arguments import as_count
from rankrise.heads import HeadMap, Layout, resolve
from rankrise.store import Alert
from rankrise.tracking import _tracked_run
from rankrise.tracking._alerts import AlertRule
from rankrise.tracking._estimate import Estimate, estimate, moved
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
from rankrise.tracking._recorder import (
    FEWEST_STEPS,
    PendingScalars,
    Recorder,
    not_finite,
    nothing_measured,
    nothing_moved,
    read_probes,
)
from rankrise.tracking._schedule import Schedule, as_schedule, spectra_schedule
from rankrise.tracking._sinks import Sink, check_sinks
from rankrise.tracking._stacks import MeasurementPlan, Readout
from rankrise.tracking._summary import layer_summary
from rankrise.tracking._targets import Scope, Targets, find_targets
from rankrise.tracking._tracked_run import Exist, RunDirectoryError
from rankrise.tracking._watch import AlertWatch, check_alerts


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
        exist: Exist = "error",
        alerts: Sequence[AlertRule] = (),
        on_alert: Callable[[Alert], None] | None = None,
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
            resume: The step of the checkpoint that was loaded; the run in `out` goes on from there. 0 begins a run, or
                starts one over that had the same weights. Rows after that step are dropped only with
                `exist="overwrite"`.
            exist: What to do if `out` holds a run. `error` refuses it, unless `resume` says where to go on; `resume`
                goes on at the step `resume`, or else where the run ends; `overwrite` drops what was recorded after the
                step `resume`, or else the whole run; `new` writes to the next free folder (runs/mine-2).
            alerts: Rules that look at every measurement, such as `RankCollapse()`.
            on_alert: Is called with every alert after it was recorded; what it raises ends the training.
            sinks: Dashboards that get the scalars and a summary of every layer.
            probes: Objects that read gradients or activations through hooks.
            config: A mapping that is written into `spec.json`.
            strict: Raise where otherwise a warning is given and training goes on, e.g. when the disk is full.
            needs_folder: Raise if the run directory cannot be opened, even if not `strict`.

        Raises:
            ValueError: The model or an option is not understood; the folder holds a run and nothing says what to do
                with it, or another process writes it; rows would be dropped without consent; the heads of a resumed
                model, or at step 0 its weights, are not those of the run.
            RunDirectoryError: The folder cannot be written, and `strict` or `needs_folder` is set.
        """
        if not isinstance(model, nn.Module):
            raise ValueError(f"`model` must be a torch.nn.Module; got {type(model).__name__}.")
        self.out = Path(out)
        _tracked_run.check_folder(self.out)
        resume = None if resume is None else as_count(resume, "resume")
        self.out = _tracked_run.chosen_folder(self.out, exist, resume)
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
        self._is_main, self._is_sharded = is_main_process(), is_sharded(model)
        check_sinks(sinks)
        check_alerts(alerts, on_alert, self._plan.quantities, self.head_map)
        self._watch, self._on_alert = AlertWatch(alerts, self.head_map), on_alert
        self._recorder = Recorder(sinks if self._is_main else (), strict=strict)
        self._pending = PendingScalars()
        self._probes = tuple(probes) if self._is_main else ()
        self._last_step = -1 if resume is None else resume
        self._last_measured = -1
        self.num_dropped_steps = 0  # recorded steps that were dropped when the run was resumed
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
        spec = _tracked_run.spec(self.head_map, self._plan, config, names, self._targets.linear, self._watch.names)
        start = _tracked_run.initial_weights(
            self.out, {names[n]: w for n, w in now.items()}, spec, exist=exist, resume=resume
        )
        with contextlib.ExitStack() as undo:  # if a later line fails, the folder is free again
            undo.callback(self._recorder.leave_run)
            try:
                self._recorder.run = _tracked_run.open_run(self.out, spec, start, exist=exist, resume=resume)
                with _tracked_run.opening(self.out):
                    self._directions = self._recorder.run.last_directions()
                    self._last_measured = self._recorder.run.last_measured
                    self._last_step = max(self._last_step, self._recorder.run.last_step)
                    self.num_dropped_steps = self._recorder.run.dropped.num_steps
                    self._watch.restore(self.out)
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
        if (due := self._plan.due(step)) and step != self._last_measured:
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
                f'Build the tracker with `resume={step}, exist="overwrite"` to go on from an earlier checkpoint.'
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

    @property
    def summary(self) -> dict[str, float]:
        """What was measured last as a few numbers for each layer, for a logger: see `layer_summary`."""
        return layer_summary(self._latest)

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

    def live(self, *, seconds: float = 2.0) -> None:
        """Show the loss and the ranks by layer in this cell of a notebook while training runs; call it before the loop.

        The curves are drawn between two steps, at most every `seconds`. Outside a notebook a warning says what to do.
        """
        if self.is_recording:
            self._recorder.show(self.out, seconds)

    def estimate(self) -> Estimate:
        """Time one measurement of each kind here, without recording it. Every process of a sharded model must call it.

        >>> import tempfile
        >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16)
        >>> estimate = RankTracker(model, out=tempfile.mkdtemp()).estimate()
        >>> estimate.initial_bytes  # four 8 × 8 matrices in float32
        1024
        """
        num_bytes = 0 if self._initial is None else self._initial.num_bytes
        return estimate(lambda due: self._measure(due, noise=True), model=self._model, initial_bytes=num_bytes)

    def close(self, *, seal: bool = True) -> None:
        """Write what is left and seal the run to Parquet; a second call does nothing.

        If nothing was measured because `every` is longer than the training, the last weights are measured now, with a
        warning. There is a warning too if no tracked weight differs from its initial value.

        Args:
            seal: False leaves the run open on disk, to be resumed: what `with` does when an exception passes.
        """
        if self._is_closed or not self._is_ours:
            return
        self._is_closed = True
        with contextlib.ExitStack() as stack:  # the run is closed whatever fails, and not sealed if something does
            stack.push(lambda kind, *_: self._recorder.close(seal=seal and kind is None))
            for probe in self._probes:
                stack.callback(self._recorder.detach, probe)
            stack.callback(self.flush)
            if seal:
                self._look_back()

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

    def _look_back(self) -> None:
        """Say what went wrong in silence: nothing was measured, or nothing has moved.

        Sharded weights are not read here, because not every process may get to this point.
        """
        if self._last_step <= 0 or self._initial is None or not self._plan.quantities or not self._recorder.is_wanted:
            return
        is_whole, names = not self._is_sharded, self._targets.parameters()
        if self._last_measured <= 0:
            if is_whole:
                self._measure_and_record(self._last_step, frozenset(("ranks", "spectra")))
            self._recorder.say(nothing_measured(self._last_step, self._plan.every, now=is_whole), key="not measured")
        is_read = is_whole and signature(self._model, names) == self._signature
        if is_read and self._last_step >= FEWEST_STEPS and not self._initial.differs(read_weights(self._model, names)):
            self._recorder.say(nothing_moved(self._last_step), key="not moved")

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
        self._latest = (
            *readout.measurements,
            *read_probes(self._probes, step, guard=self._recorder.guard_all, pending=self._pending),
        )
        alerts = self._watch.look(step, self._latest, guard=self._recorder.guard_all)
        self._recorder.record(step, self._pending.take(), self._latest, alerts, sync="spectra" in due)
        self._recorder.tell(step, alerts, self._on_alert)

    def _refuse_changed_heads(self) -> None:
        """Resolve the model again only if its signature changed: resolving costs as much as measuring ranks."""
        if not self._targets.parameters():
            return
        now = signature(self._model, self._targets.parameters())
        if now != self._signature:
            self._targets.refuse_changed(self._model, self._resolve)
            self._signature = now

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
                now = {name: moved(weight) for name, weight in now.items()}
            with self._recorder.guard("Measuring"):
                readout = read(now, self._initial, plan=self._plan, guard=self._recorder.guard_all)
                total.measurements += readout.measurements
                total.directions |= readout.directions
                if readout.not_finite:
                    self._recorder.say(not_finite(self._last_step, readout.not_finite), key="not finite")
        return total
