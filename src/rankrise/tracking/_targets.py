"""What of a model is read: its attention layers, and with `scope="linear"` its other linear weights."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from rankrise._arguments import check_choice
from rankrise.heads import HeadMap, LinearWeight, linear_weights
from rankrise.tracking._measurement import Clock
from rankrise.tracking._parameters import InitialWeights
from rankrise.tracking._stacks import Guard, MeasurementPlan, Readout, groups, measure, measure_linear
from rankrise.tracking._tracked_run import refuse_changed_heads, refuse_changed_weights

Scope = Literal["attention", "linear"]
Resolve = Callable[[nn.Module], HeadMap]


class Reading(Protocol):
    """Measures some weights of a model."""

    def __call__(
        self, now: Mapping[str, Tensor], initial: InitialWeights, *, plan: MeasurementPlan, guard: Guard
    ) -> Readout:
        """Measure the weights `now` against the initial ones."""


@dataclass(frozen=True)
class Targets:
    """The recipes by which a model is read."""

    head_map: HeadMap | None
    linear: tuple[LinearWeight, ...] | None  # None if only attention is read
    warning: str = ""  # why no attention is read, although it was looked for

    def parameters(self) -> tuple[str, ...]:
        """Names of all tensors that are read, each once."""
        of_heads = () if self.head_map is None else self.head_map.parameters()
        return tuple(dict.fromkeys((*of_heads, *(name for w in self.linear or () for name in w.all_parameters()))))

    def refuse_changed(self, model: nn.Module, resolve: Resolve) -> None:
        """Refuse a model that is no longer read in the same way.

        Raises:
            ValueError: The heads, linear weights or adapters of the model have changed.
        """
        if self.head_map is not None:
            refuse_changed_heads(self.head_map, resolve(model))
        if self.linear is not None:
            refuse_changed_weights(self.linear, linear_weights(model, self.head_map))

    def readings(
        self, due: frozenset[Clock], device: torch.device, directions: Mapping[str, Tensor]
    ) -> Iterator[tuple[Iterable[str], Reading]]:
        """What is measured at once: the tensors it needs, and the function that measures them.

        Args:
            due: The clocks that have struck; linear weights are read when spectra are due.
            device: Where the model is.
            directions: Those of the measurement before.
        """
        for group in () if self.head_map is None else groups(self.head_map, device):
            names = dict.fromkeys(name for layer in group for name in layer.parameters())
            yield names, functools.partial(measure, group, due=due, previous=directions)
        for weight in (self.linear or ()) if "spectra" in due else ():
            yield weight.all_parameters(), functools.partial(measure_linear, weight)


def find_targets(model: nn.Module, resolve: Resolve, scope: Scope, *, needs_heads: bool) -> Targets:
    """Find what is read; without `needs_heads`, a model whose attention is not understood is read as whole matrices.

    Raises:
        ValueError: The scope is not known, or the attention is not understood.
    """
    check_choice("scope", scope, get_args(Scope))
    try:
        head_map, warning = resolve(model), ""
    except ValueError as error:
        if needs_heads or scope == "attention":
            raise
        head_map, warning = None, f"No attention is read, only whole matrices: {error}"
    return Targets(head_map, linear_weights(model, head_map) if scope == "linear" else None, warning)
