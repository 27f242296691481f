"""Where numbers go: the run directory always, sinks as well. Trouble there is said once, and training goes on."""

import contextlib
import errno
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rankrise.store import Run, rows, scalar_rows
from rankrise.tracking._measure import Reading
from rankrise.tracking.sinks import Sink, tag

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor


_RECORDING = "Recording to the run directory"
_MOST_LATE_BYTES = 2**26  # of rows that are kept in memory while the disk refuses them


class TrackingWarning(UserWarning):
    """Something could not be measured or recorded; training went on."""


class Recorder:
    """Takes numbers, and trouble."""

    def __init__(self, sinks: Sequence[Sink], *, strict: bool) -> None:
        self.run: Run | None = None
        self._sinks = list(sinks)
        self._strict = strict
        self._said: set[str] = set()
        self._late: pa.RecordBatch | None = None  # what the disk has refused, to be tried again

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
            self.say(f"{what} failed: {_plain(error)} Training goes on without it; this is said once.", key=what)

    def guard_all(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Turn any error into one warning, unless strict: around what a user wrote."""
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
        readings: Sequence[Reading] = (),
        *,
        sync: bool = False,
    ) -> None:
        """Write a block, and with `sync` wait for the disk; then tell the sinks."""
        block = to_block(step, scalars, readings)
        if block.num_rows == 0 and self._late is None:
            return
        if self.run is not None:
            with self.guard(_RECORDING):
                self._write(self.run, block, sync=sync)
        for sink in list(self._sinks):
            self._copy(sink, block)

    def sync(self) -> None:
        """Wait until all rows are on the disk."""
        if self.run is not None:
            with self.guard(_RECORDING):
                self.run.sync()

    def save_directions(self, step: int, directions: "dict[str, Tensor]") -> None:
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
        """Append a block after what came too late; if the disk refuses, keep both for the next time."""
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

    def _copy(self, sink: Sink, block: "pa.RecordBatch") -> None:
        values: dict[int, dict[str, float]] = {}
        for row in block.filter(_is_single(block)).to_pylist():
            name = tag(row["layer"], row["head"], row["circuit"], row["quantity"])
            values.setdefault(row["step"], {})[name] = row["value"]
        for step, named in values.items():
            if not self._call(sink, lambda step=step, named=named: sink.log(step, named)):  # type: ignore[misc]
                self._sinks.remove(sink)
                return

    def _call(self, sink: Sink, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:  # a dashboard is not worth a training run
            if self._strict:
                raise
            name = type(sink).__name__
            self.say(f"{name} failed: {_plain(error)} It gets nothing more; training goes on.", key=name)
            return False
        return True


def to_block(
    step: int, scalars: Sequence[tuple[int, str, float]], readings: Sequence[Reading] = ()
) -> "pa.RecordBatch":
    """Rows of the table: the user's scalars, then what was measured."""
    import pyarrow as pa

    batches = [scalar_rows(scalars)] + [
        rows(
            step,
            r.quantity.name,
            r.values.cpu().numpy(),
            circuit=r.circuit,
            layers=r.layers,
            heads=r.heads,
            index=r.quantity.index,
        )
        for r in readings
    ]
    return pa.concat_batches(batches)


def _is_single(block: "pa.RecordBatch") -> "pa.BooleanArray":
    import pyarrow.compute as pc

    return pc.equal(block["index"], -1)


def _plain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full. Make room."
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"the folder cannot be written ({error.strerror}). Choose another `out`."
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return "a file would pass the size limit of this process. Raise it (ulimit -f)."
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{text.rstrip('.')}."
