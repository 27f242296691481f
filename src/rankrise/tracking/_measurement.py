"""What is measured, and by whom: `Measurement` is the record, `Quantity` and `Probe` are the two ways to make one.

A quantity reads the weights and is a function of a `Change`. A probe reads gradients and activations through hooks.
Both end as the same rows of the table, `step, layer, head, circuit, quantity, index, value`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor, nn

from rankrise.heads import HeadMap
from rankrise.tracking._change import Change

if TYPE_CHECKING:
    import pyarrow as pa

Clock = Literal["ranks", "spectra"]  # `ranks` strikes often; `spectra` strikes rarely, as it costs full decompositions


@dataclass(frozen=True)
class Measurement:
    """One quantity of the model as a whole, of some layers, or of every head of some layers.

    Args:
        name: The name in the column `quantity`.
        values: Numbers on any device. Their shape is `(layers, heads)`, without the dimension `layers` for the model as
            a whole and without the dimension `heads` unless `heads` is set. One dimension more makes vectors.
        layers: Index of each layer, from 0; None for the model as a whole.
        heads: Whether the dimension after the layers counts heads.
        circuit: `kq`, `vo`, a whole matrix `q`, `k`, `v`, `o`, or empty.
        index: What the entries of a vector are, if not 0 … k − 1.

    Raises:
        ValueError: The shape of `values` does not fit the other fields, or `name` is not text.

    >>> import torch
    >>> entropy = Measurement("entropy", torch.tensor([[0.5, 0.25]]), layers=(3,), heads=True)
    >>> [(row["layer"], row["head"], row["value"]) for row in entropy.rows(step=5).to_pylist()]
    [(3, 0, 0.5), (3, 1, 0.25)]
    >>> Measurement("kernel_norm", torch.tensor(2.0)).rows(step=5)["layer"].to_pylist()
    [-1]
    """

    name: str
    values: Tensor
    layers: tuple[int, ...] | None = None
    heads: bool = False
    circuit: str = ""
    index: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.values, Tensor):
            raise ValueError(f"`values` of {self.name!r} must be a tensor; got {type(self.values).__name__}.")
        if self.heads and self.layers is None:
            raise ValueError(f"{self.name!r} must name the layers of its heads; `layers` is None.")
        num_places = (self.layers is not None) + self.heads
        shape = tuple(self.values.shape)
        fits = len(shape) - num_places in (0, 1) and (self.layers is None or shape[0] == len(self.layers))
        if self.index is not None:
            fits = fits and len(shape) == num_places + 1 and shape[-1] == len(self.index)
        if not fits:
            raise ValueError(f"`values` of {self.name!r} must have the shape {self._expected()}; got {shape}.")

    def rows(self, step: int) -> "pa.RecordBatch":
        """The rows of the table at `step`; -1 stands for no layer, no head and no index."""
        from rankrise.store import rows

        values = self.values.detach().cpu().double().numpy()
        return rows(
            step,
            self.name,
            values[None] if self.layers is None else values,
            circuit=self.circuit,
            layers=(-1,) if self.layers is None else self.layers,
            heads=self.heads,
            index=self.index,
        )

    def _expected(self) -> str:
        places = ([] if self.layers is None else [str(len(self.layers))]) + (["heads"] if self.heads else [])
        if self.index is not None:
            return f"({', '.join([*places, str(len(self.index))])})"
        return f"({', '.join(places)}) or ({', '.join([*places, 'k'])})"


def check_name(name: str) -> None:
    """Refuse a name that the table cannot hold.

    Raises:
        ValueError: The name is not text, or text that UTF-8 cannot hold.

    >>> check_name("loss")
    """
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"The name of a number must be text that UTF-8 can hold; got {name!r}.") from None


@dataclass(frozen=True)
class Quantity:
    """A number, or a vector, for every change in a stack of changes.

    Args:
        name: The name in the column `quantity`.
        clock: `ranks` or `spectra`: the schedule on which the quantity is measured.
        measure: Takes a `Change` of n matrices and returns (n,) or (n, k), or None where the quantity does not apply.
        index: What the entries of a vector are, if not 0 … k − 1.

    >>> import torch
    >>> from rankrise.tracking import MatrixChange
    >>> half = Quantity("half_norm", "ranks", lambda change: change.frobenius_norm / 2)
    >>> half.measure(MatrixChange(torch.full((1, 1), 8.0))).item()
    4.0
    """

    name: str
    clock: Clock
    measure: Callable[[Change], Tensor | None]
    index: tuple[int, ...] | None = None


class Probe(Protocol):
    """Something that listens to the model between measurements.

    Hooks run inside the user's training, so they must not change what they see and must not draw random numbers.
    """

    def attach(self, model: nn.Module, head_map: HeadMap | None) -> None:
        """Register hooks. The tracker calls this once, when it is built.

        Args:
            model: The model in training.
            head_map: Its attention layers as the tracker reads them; None if the tracker reads no heads.
        """

    def read(self, step: int) -> Sequence[Measurement] | Mapping[str, float]:
        """What was seen since the last call; the tracker calls this whenever ranks are due.

        Returns:
            Measurements, or plain numbers of the model as a whole by name.
        """

    def detach(self) -> None:
        """Remove the hooks. The tracker calls this when it is closed."""
