"""Where numbers go: to the run directory and to the sinks. Errors there become one warning each; training goes on.

A user's own numbers wait in `PendingScalars` and are written in blocks, because writing a block costs more than writing
a number. Numbers on an accelerator are also read in blocks, so that no step waits for the device.
"""

import contextlib
import errno
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankrise.store import Alert, Run, alert_rows, scalar_rows
from rankrise.tracking._live import LiveCell, no_notebook, notebook_display
from rankrise.tracking._measurement import Measurement, Probe, check_name
from rankrise.tracking._schedule import Schedule, schedule_name
from rankrise.tracking._sinks import Sink
from rankrise.tracking._summary import layer_summary
from rankrise.tracking._watch import sentences

if TYPE_CHECKING:
    import pyarrow as pa

_RECORDING = "Recording to the run directory"
_MOST_LATE_BYTES = 2**26  # most bytes of rows that are kept in memory while the disk refuses them
_MOST_PENDING = 200  # scalars are written at the latest when so many wait
FEWEST_STEPS = 3  # after which weights that have not moved are worth a warning: a warm-up may begin with a rate of 0
_SECONDS = 1.0  # scalars on the CPU are written after this time, if a step comes


class TrackingWarning(UserWarning):
    """Something could not be measured or recorded; training went on."""


class Recorder:
    """Writes numbers to the run directory and to the sinks, and turns their errors into warnings."""

    def __init__(self, sinks: Sequence[Sink], *, strict: bool) -> None:
        self.run: Run | None = None
        self._sinks = list(sinks)
        self._strict = strict
        self._said: set[str] = set()
        self._late: pa.RecordBatch | None = None  # rows that the disk has refused; tried again with the next block

    @property
    def is_wanted(self) -> bool:
        """Whether anybody would get the numbers."""
        return self.run is not None or bool(self._sinks)

    @contextlib.contextmanager
    def guard(self, what: str, errors: tuple[type[Exception], ...] = (OSError, RuntimeError)) -> Iterator[None]:
        """Turn an error of the disk, of memory or of a decomposition into one warning, unless strict."""
        try:
            yield
        except errors as error:
            if self._strict:
                raise
            self.say(f"{what} failed: {plain_reason(error)} Training goes on without it; this is said once.", key=what)

    def guard_all(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Turn any error into one warning, unless strict; meant for code that the user wrote."""
        return self.guard(what, (Exception,))

    def say(self, message: str, *, key: str) -> None:
        """Warn, once for each key."""
        if key not in self._said:
            self._said.add(key)
            warnings.warn(message, TrackingWarning, stacklevel=4)

    def record(
        self,
        step: int,
        scalars: Sequence[tuple[int, str, float]],
        measurements: Sequence[Measurement] = (),
        alerts: Sequence[Alert] = (),
        *,
        sync: bool = False,
    ) -> None:
        """Write a block to the run directory, with `sync` wait for the disk; the sinks get scalars and a summary."""
        block = to_block(step, scalars, measurements, alerts)
        if block.num_rows == 0 and self._late is None:
            return
        if self.run is not None:
            with self.guard(_RECORDING):
                self._write(self.run, block, sync=sync)
        if self._sinks:
            self._copy(step, scalars, measurements)

    def show(self, folder: Path, seconds: float) -> None:
        """Draw the run again and again in the notebook cell that runs now; outside a notebook, warn instead."""
        update = notebook_display()
        if update is None:
            self.say(no_notebook(folder), key="live")
        else:
            self._sinks.append(LiveCell(folder, seconds, update))

    def tell(self, step: int, alerts: Sequence[Alert], on_alert: Callable[[Alert], None] | None) -> None:
        """Warn of alerts, and hand them to the user's function."""
        for name, sentence in sentences(alerts).items():
            self.say(sentence, key=f"alert {name} {step}")
        if on_alert is not None:
            for alert in alerts:
                on_alert(alert)

    def detach(self, probe: Probe) -> None:
        """Take a probe off the model; an error that it raises becomes a warning."""
        with self.guard_all(f"Detaching {type(probe).__name__}"):
            probe.detach()

    def sync(self) -> None:
        """Wait until all rows are on the disk."""
        if self.run is not None:
            with self.guard(_RECORDING):
                self.run.sync()

    def save_directions(self, step: int, directions: dict[str, Tensor]) -> None:
        """Store singular vectors beside the table."""
        if self.run is not None and directions:
            with self.guard("Storing directions in the run directory"):
                self.run.save_directions(step, directions)

    def leave_run(self) -> None:
        """Close the run directory as it is."""
        if self.run is not None:
            self.run.close()
            self.run = None

    def close(self, *, seal: bool) -> None:
        """Seal or close the run directory, then the sinks."""
        run, sinks = self.run, self._sinks
        self.run, self._sinks = None, []
        try:
            if run is not None and seal:
                with self.guard("Sealing the run directory"):
                    run.seal()
        finally:
            if run is not None:
                run.close()
            for sink in sinks:
                self._call(sink, sink.close)

    @property
    def has_late_rows(self) -> bool:
        """Whether rows wait for a disk that has refused them."""
        return self._late is not None

    def _write(self, run: Run, block: "pa.RecordBatch", *, sync: bool) -> None:
        """Append the rows refused before and this block; if the disk refuses again, keep both for the next time."""
        import pyarrow as pa

        late, self._late = self._late, None
        if late is not None:
            block = pa.concat_batches([late, block])
        try:
            run.append(block, is_late=late is not None)
        except OSError:
            if block.nbytes <= _MOST_LATE_BYTES:
                self._late = block
            raise
        if sync:
            run.sync()

    def _copy(self, step: int, scalars: Sequence[tuple[int, str, float]], measurements: Sequence[Measurement]) -> None:
        values: dict[int, dict[str, float]] = {}
        for at, name, value in scalars:
            values.setdefault(at, {})[name] = value
        if measurements:
            values.setdefault(step, {}).update(layer_summary(measurements))
        for sink in list(self._sinks):
            for at, named in values.items():
                if named and not self._call(sink, functools.partial(sink.log, at, named)):
                    self._sinks.remove(sink)
                    break

    def _call(self, sink: Sink, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:  # a dashboard is not worth a training run
            if self._strict:
                raise
            name = type(sink).__name__
            self.say(f"{name} failed: {plain_reason(error)} It gets nothing more; training goes on.", key=name)
            return False
        return True


def to_block(
    step: int,
    scalars: Sequence[tuple[int, str, float]],
    measurements: Sequence[Measurement] = (),
    alerts: Sequence[Alert] = (),
) -> "pa.RecordBatch":
    """Rows of the table: the user's scalars, then what was measured, then the alerts that it raised."""
    import pyarrow as pa

    blocks = [scalar_rows(scalars), *(measurement.rows(step) for measurement in measurements)]
    return pa.concat_batches([*blocks, alert_rows(alerts)] if alerts else blocks)


def plain_reason(error: BaseException) -> str:
    """The reason of an error in one sentence, with what the user can do where that is known."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full. Make room."
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"the folder cannot be written ({error.strerror}). Choose another `out`."
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return "a file would pass the size limit of this process. Raise it (ulimit -f)."
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{text.rstrip('.')}."


@dataclass
class PendingScalars:
    """Scalars that were logged and not yet written."""

    clock: Callable[[], float] = time.monotonic
    _taken_at: float = -math.inf
    _waiting: list[tuple[int, str, float | Tensor]] = field(default_factory=list)

    def add(self, step: int, scalars: Mapping[str, object]) -> None:
        """Take numbers: anything `float` takes, or a tensor of one number. If one is refused, none is taken.

        Raises:
            ValueError: A value is not a number, or a name is not text; the message names it.
        """
        for name in scalars:
            check_name(name)
        self._waiting += [(step, name, _number(name, value)) for name, value in scalars.items()]

    @property
    def are_ready(self) -> bool:
        """Whether to write now: 200 scalars wait, or all are on the CPU and nothing was written for a second."""
        if len(self._waiting) >= _MOST_PENDING:
            return True
        if not self._waiting or self.clock() - self._taken_at < _SECONDS:
            return False
        return not any(isinstance(value, Tensor) for _, _, value in self._waiting)

    def take(self) -> list[tuple[int, str, float]]:
        """Return all scalars as (step, name, value), oldest first, and forget them."""
        tensors = [value for _, _, value in self._waiting if isinstance(value, Tensor)]
        values = iter(torch.stack([t.double() for t in tensors]).tolist() if tensors else [])
        taken = [(step, name, next(values) if isinstance(v, Tensor) else v) for step, name, v in self._waiting]
        self._waiting.clear()
        self._taken_at = self.clock()
        return taken


def _number(name: str, value: object) -> float | Tensor:
    if isinstance(value, Tensor):
        value = value.detach()
        if value.numel() == 1 and value.device.type not in ("cpu", "mps"):
            return value.reshape(()).clone()
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(
            f"`{name}` must be one number; got {_what(value)}. Pass its mean, or one number at a time."
        ) from None


def _what(value: object) -> str:
    return "an int too large for a float" if isinstance(value, int) else type(value).__name__


def read_probes(
    probes: Sequence[Probe],
    step: int,
    *,
    guard: Callable[[str], contextlib.AbstractContextManager[object]],
    pending: PendingScalars,
) -> list[Measurement]:
    """What the probes measured; plain numbers go to the scalars that wait. A probe that fails gives nothing."""
    measurements: list[Measurement] = []
    for probe in probes:
        with guard(f"Reading {type(probe).__name__}"):
            read = probe.read(step)
            if isinstance(read, Mapping):
                pending.add(step, read)
                continue
            for entry in read:
                if not isinstance(entry, Measurement):
                    raise ValueError(f"`read` must return measurements; got {type(entry).__name__}")
            measurements += read
    return measurements


def not_finite(step: int, places: Sequence[str]) -> str:
    """What to say when weights are NaN or infinite.

    >>> not_finite(5, ["layer 0 head 1 (kq)"])[:76]
    'The weights must be finite; at step 5 those of layer 0 head 1 (kq) are not. '
    """
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return (
        f"The weights must be finite; at step {step} those of {places[0]}{more} are not. Recorded as NaN; this is "
        "said once."
    )


def nothing_measured(step: int, every: Schedule, *, now: bool) -> str:
    r"""What to say at the end of a training in which `every` never struck.

    >>> from rankrise.tracking import Every
    >>> print(nothing_measured(40, Every(200), now=True).replace("; ", ";\n"))
    Nothing was measured in the 40 steps of this training, because `every` was Every(num_steps=200);
    the last weights were measured now, and every=1 would show curves.
    """
    measured = "the last weights were measured now, and " if now else ""
    return (
        f"Nothing was measured in the {step} steps of this training, because `every` was {schedule_name(every)}; "
        f"{measured}every={max(1, step // 40)} would show curves."
    )


def nothing_moved(step: int) -> str:
    """What to say at the end of a training in which no tracked weight has changed.

    >>> nothing_moved(40)[:41]
    'No tracked weight has moved in 40 steps: '
    """
    return (
        f"No tracked weight has moved in {step} steps: the tracker must be built before training, on the model whose "
        "parameters the optimiser updates."
    )
