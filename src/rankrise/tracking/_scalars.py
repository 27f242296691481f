"""A user's own numbers, written in blocks: a block a step would cost more than the number.

Those on an accelerator are moreover read in blocks, so that no step waits for the device.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

_MOST_PENDING = 200
_SECONDS = 1.0


@dataclass
class PendingScalars:
    """Scalars that were logged and not yet written."""

    clock: Callable[[], float] = time.monotonic
    _taken_at: float = -math.inf
    _waiting: list[tuple[int, str, float | Tensor]] = field(default_factory=list)

    def add(self, step: int, scalars: Mapping[str, object]) -> None:
        """Take numbers as they come: anything `float` takes, or a tensor of one number. All of them or none.

        Raises:
            ValueError: Not a number, or not a name; names it.
        """
        self._waiting += [(step, _text(name), _number(name, value)) for name, value in scalars.items()]

    @property
    def are_ready(self) -> bool:
        """Whether they have become many; or none is on a device, and nothing was written for a second."""
        if len(self._waiting) >= _MOST_PENDING:
            return True
        if not self._waiting or self.clock() - self._taken_at < _SECONDS:
            return False
        return not any(isinstance(value, Tensor) for _, _, value in self._waiting)

    def take(self) -> list[tuple[int, str, float]]:
        """All of them as (step, name, value), oldest first; none are left."""
        tensors = [value for _, _, value in self._waiting if isinstance(value, Tensor)]
        values = iter(torch.stack([t.double() for t in tensors]).tolist() if tensors else [])
        taken = [(step, name, next(values) if isinstance(v, Tensor) else v) for step, name, v in self._waiting]
        self._waiting.clear()
        self._taken_at = self.clock()
        return taken


def _text(name: str) -> str:
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"The name of a number must be text that UTF-8 can hold; got {name!r}.") from None
    return name


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
