"""From the loop to the user's progress: seldom, and without waiting for the device."""

import time
from collections.abc import Callable, Mapping

from rankrise.lab.training._progress import Progress, Report
from rankrise.lab.training._readback import Readback

_SECONDS = 0.25  # between two reports


class StableRankSink:
    """Takes the stable rank of every head from the tracker, and remembers their mean."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Look for stable ranks of heads; NaN, where nothing has changed yet, does not count."""
        found = [v for name, v in values.items() if name.endswith("/kq/stable_rank") and v == v]
        if found:
            self.mean = sum(found) / len(found)

    def close(self) -> None:
        """Keep the last mean."""


class Reporter:
    """Tells a `Progress` now and then where training stands."""

    def __init__(
        self,
        progress: Progress | None,
        ranks: StableRankSink,
        *,
        begin: int,
        num_steps: int,
        steps_per_epoch: int,
        has_accuracy: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._ranks = ranks
        self._num_steps = num_steps
        self._steps_per_epoch = steps_per_epoch
        self._has_accuracy = has_accuracy
        self._clock = clock
        self._before = (begin, clock())
        self._next = clock() + _SECONDS
        self._rate: float | None = None

    def update(self, step: int, readback: Readback) -> None:
        """Report, if it is time or the end."""
        if self._progress is None or (step < self._num_steps and self._clock() < self._next):
            return
        now = self._clock()
        self._next = now + _SECONDS
        then, at = self._before
        if now > at and step > then:
            rate = (step - then) / (now - at)
            self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate
            self._before = (step, now)
        self._progress.update(
            Report(
                step,
                self._num_steps,
                epoch=(max(step, 1) - 1) // self._steps_per_epoch + 1,
                num_epochs=self._num_steps // self._steps_per_epoch,
                rate=self._rate,
                loss=_known(readback.loss),
                accuracy=_known(readback.accuracy) if self._has_accuracy else None,
                stable_rank=self._ranks.mean,
            )
        )


def _known(value: float) -> float | None:
    return value if value == value else None
