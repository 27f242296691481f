"""Losses come back from a GPU a window late, so that no step waits for it."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_WINDOW = 50  # steps; on the CPU 1


class Readback:
    """The last loss and accuracy that are known here, and the first step whose loss was not finite."""

    def __init__(self, device: torch.device, samples: int) -> None:
        """`samples` is what to divide the number correct by."""
        self._window = _WINDOW if device.type == "cuda" else 1
        self._samples = samples
        self._waiting: list[tuple[int, Tensor]] = []
        self._coming: tuple[list[int], Tensor, torch.cuda.Event | None] | None = None
        self.loss = math.nan
        self.accuracy = math.nan
        self.diverged_at: int | None = None

    def add(self, step: int, metrics: Tensor) -> None:
        """Take (mean loss, number correct) of a step."""
        self._waiting.append((step, metrics))
        if len(self._waiting) >= self._window:
            self._send()
            if self._window == 1:
                self._receive()

    def settle(self) -> None:
        """Wait until everything is read."""
        self._send()
        self._receive()

    def _send(self) -> None:
        """Start to copy what waits; what was sent a window before has come."""
        self._receive()
        if not self._waiting:
            return
        steps, metrics = zip(*self._waiting, strict=True)
        self._waiting = []
        stacked = torch.stack(metrics).to("cpu", non_blocking=True)
        event = None
        if metrics[0].is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._coming = (list(steps), stacked, event)

    def _receive(self) -> None:
        if self._coming is None:
            return
        steps, stacked, event = self._coming
        self._coming = None
        if event is not None:
            event.synchronize()
        self._read(steps, stacked.tolist())

    def _read(self, steps: Sequence[int], rows: Sequence[Sequence[float]]) -> None:
        self.loss, correct = rows[-1]
        self.accuracy = correct / self._samples
        if self.diverged_at is None:
            self.diverged_at = next(
                (s for s, (loss, _) in zip(steps, rows, strict=True) if not math.isfinite(loss)), None
            )
