"""Learning rates and measurements, as functions of the step."""

import math
from dataclasses import dataclass

from rankrise.lab.training._config import TrainingConfig
from rankrise.tracking import At, Every, at


def learning_rate(config: TrainingConfig, step: int, *, steps_per_epoch: int) -> float:
    """Rate of the update after `step` updates: linear warm-up, then half a cosine to zero, or constant.

    >>> config = TrainingConfig(epochs=10, learning_rate=1.0, warmup_epochs=2)
    >>> [round(learning_rate(config, step, steps_per_epoch=1), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "constant":
        return config.learning_rate
    part = (step - warmup) / (config.epochs * steps_per_epoch - warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * part))


@dataclass(frozen=True)
class EveryAndLast(Every):
    """Yes at multiples of `num_steps`, and at the last step."""

    last: int

    def __call__(self, step: int) -> bool:
        return step == self.last or super().__call__(step)


def spectra_steps(num: int, last: int) -> At:
    """About `num` steps to measure spectra at, with the last: half evenly spaced, half in geometric progression.

    The early stages are short and the late ones long; each half sees one kind.

    >>> spectra_steps(6, 1000)
    at(10, 100, 333, 667, 1000)
    """
    if num == 0:
        return at()
    even = {round(last * (k + 1) / (num - num // 2)) for k in range(num - num // 2)}
    geometric = {round(last ** ((k + 1) / (num // 2))) for k in range(num // 2)}
    return at(*(even | geometric | {last}))
