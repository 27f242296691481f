"""What is not in the weights: gradients and activations, read through hooks."""

from collections.abc import Mapping
from typing import Protocol

from torch import nn


class Probe(Protocol):
    """Something that listens to the model between measurements.

    Hooks run inside the user's training: they must not change what they see, nor draw random numbers.
    """

    def attach(self, model: nn.Module) -> None:
        """Register hooks; called once, when the tracker is built."""

    def read(self, step: int) -> Mapping[str, float]:
        """Numbers to record, by name; called whenever stable ranks are due."""

    def detach(self) -> None:
        """Remove the hooks; called when the tracker is closed."""
