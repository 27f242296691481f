"""What training came to."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["finished", "stopped", "diverged"]


class TrainingWarning(UserWarning):
    """Something could not be saved, or is not as before; training went on."""


@dataclass(frozen=True)
class TrainingResult:
    """How a call of `train` ended, with the last numbers it recorded.

    Attributes:
        status: "finished", and the run is sealed; "stopped" by a signal, or "diverged", and the run is open.
        step: Optimiser steps done.
        message: A sentence for the user.
        signal: That stopped it.
        train_loss: Mean over the last whole epoch, None before the end of the first; so the others.
        train_accuracy: Of classification.
        test_loss: On the test set, at the last test.
        test_accuracy: Not of regression.
    """

    status: Status
    step: int
    message: str
    signal: int | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
