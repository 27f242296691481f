"""When to save, what to keep, and what to do when the disk does not take it."""

import contextlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from rankrise.lab.training._result import TrainingWarning
from rankrise.store import Checkpoint, checkpoint_steps, prune_checkpoints, save_checkpoint

_KEEP = 2
_REST = 50  # a save that takes long is followed by so many times as long without one: at most 2% of the time is spent


class Checkpointer:
    """Saves checkpoints of a run whose lock this process holds."""

    def __init__(
        self,
        folder: Path,
        *,
        seconds: float,
        every: int | None,
        resumed: int | None,
        before: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Note where to save.

        Args:
            folder: The run.
            seconds: Between two saves, at least.
            every: Steps between two saves, whatever the time.
            resumed: Step of the checkpoint that was loaded; it is good.
            before: Puts on the disk what a checkpoint relies on, or raises OSError.
            clock: Seconds.
        """
        self._folder = folder
        self._seconds = seconds
        self._every = every
        self._before = before
        self._clock = clock
        self._good = [] if resumed is None else [resumed]
        self._next = clock() + seconds
        self._has_warned = False

    def clear_leftovers(self) -> None:
        """Remove what processes that died while saving have left."""
        prune_checkpoints(self._folder, keep=checkpoint_steps(self._folder))

    @property
    def last_good(self) -> int | None:
        """Step of the newest checkpoint that is known to be whole."""
        return self._good[-1] if self._good else None

    def is_due(self, step: int) -> bool:
        """Whether to save now."""
        return self._clock() >= self._next or (self._every is not None and step % self._every == 0)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then drop all but the newest two good ones; a step that was saved is not saved again.

        Raises:
            OSError: The disk does not take it; those before are still there.
        """
        if checkpoint.step == self.last_good:
            return
        begin = self._clock()
        try:
            self._before()
            save_checkpoint(self._folder, checkpoint)
            self._good.append(checkpoint.step)
            with contextlib.suppress(OSError):  # it is saved; what is left over goes with the next one
                prune_checkpoints(self._folder, keep=self._good[-_KEEP:])
        finally:
            now = self._clock()
            self._next = now + max(self._seconds, _REST * (now - begin))

    def try_to_save(self, checkpoint: Checkpoint) -> None:
        """Save; say once if it cannot be done, and go on."""
        try:
            self.save(checkpoint)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(self.trouble(checkpoint.step, error), TrainingWarning, stacklevel=2)

    def trouble(self, step: int, error: OSError) -> str:
        """A sentence on a checkpoint that could not be saved."""
        last = "there is none before it" if self.last_good is None else f"the last good one is of step {self.last_good}"
        return (
            f"The checkpoint of step {step} could not be saved in {self._folder} ({error.strerror or error}); {last}. "
            "Training goes on and tries again; make room."
        )
