"""A small network learns a table of arithmetic modulo p, which is where slingshots and grokking are looked for.

The table of a run has these numbers at layer -1: `loss` and `train_accuracy` on the whole training part and
`test_accuracy` on the rest, all measured with the weights after that many steps; and what
`rankrise.tracking.ClassifierProbe` reads from the last layer on the whole training part: `last_norm`,
`last_class_mean_norm`, `rest_norm`, `absorbed`, `imbalance`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rankrise.lab.experiments.kinds._kind import Assignment, Ended, Kind, Spec
from rankrise.lab.experiments.kinds._theory_kind import Ticker, check_at_least

if TYPE_CHECKING:
    import torch

_WORDS = {"add": "addition", "subtract": "subtraction", "divide": "division"}


@dataclass(frozen=True, kw_only=True)
class ModularSpec(Spec):
    """Arithmetic modulo p, learned from a part of the table.

    Args:
        p: The modulus, a prime for division.
        operation: "add", "subtract" or "divide".
        train_share: Share of the table that is trained on.
        network: "mlp": both numbers are embedded, and two hidden layers with ReLU follow. "transformer": one pre-norm
            block of 4 heads on the tokens a, b and "=", whose last token is classified.
        width: Width of the hidden layers, or of a token; the hidden layer of the block is four times as wide.
        loss: "cross_entropy"; "zero_sum" for `rankrise.zero_sum_cross_entropy`; "fp64" for the cross-entropy of logits
            that were cast to float64.
        precision: Dtype of the weights.
        optimiser: "adam", or "sgd" with momentum 0.9. There is no weight decay.
        learning_rate: Learning rate; the transformer reaches it after ten steps of linear warm-up.
        betas: β₁ and β₂ of Adam.
        epsilon: The ε that Adam adds to the root of the second moment.
        batch_size: Number of samples of a step; None for the whole training part.
        num_steps: Steps to take.
        every: Steps between two measurements.
        seed: Seed of the weights, of the split and of the batches.

    Raises:
        ValueError: A number is out of its range, or p is no prime and the operation is division.
    """

    num_steps: int
    p: int = 31
    operation: Literal["add", "subtract", "divide"] = "add"
    train_share: float = 0.6
    network: Literal["mlp", "transformer"] = "mlp"
    width: int = 64
    loss: Literal["cross_entropy", "zero_sum", "fp64"] = "cross_entropy"
    precision: Literal["fp32", "fp64"] = "fp32"
    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-8
    batch_size: int | None = None
    every: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_steps", 1), ("p", 3), ("width", 4), ("every", 1)):
            check_at_least(name, getattr(self, name), least)
        if self.batch_size is not None:
            check_at_least("batch_size", self.batch_size, 1)
        for name in ("learning_rate", "epsilon"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"`{name}` must be positive; got {getattr(self, name)!r}. Pass a larger one.")
        if not 0 < self.train_share < 1:
            raise ValueError(f"`train_share` must be between 0 and 1; got {self.train_share!r}. Pass 0.5 for a half.")
        if self.operation == "divide" and any(self.p % factor == 0 for factor in range(2, math.isqrt(self.p) + 1)):
            raise ValueError(f"`p` must be a prime for division; got {self.p}. Pass 97, say.")


class ModularKind(Kind[ModularSpec]):
    """Training without checkpoints: a run that was cut off starts over."""

    name = "modular"
    title = "arithmetic modulo p, learned by a small network"
    spec = ModularSpec

    def data_name(self, spec: ModularSpec) -> str:
        """The operation and the modulus."""
        return f"{_WORDS[spec.operation]} modulo {spec.p}"

    def in_words(self, record: Mapping[str, Any]) -> str:
        """The table, the network and the optimiser."""
        loss = {"zero_sum": ", zero-sum gradient", "fp64": ", loss in float64"}.get(str(record.get("loss")), "")
        precision = " in float64" if record.get("precision") == "fp64" else ""
        return (
            f"{record.get('train_share', 0):.0%} of {_WORDS.get(str(record.get('operation')), 'a table')} modulo "
            f"{record.get('p')}, {record.get('network')} of width {record.get('width')}{precision}, "
            f"{record.get('optimiser')}{loss}"
        )

    def execute(self, spec: ModularSpec, assignment: Assignment) -> Ended:
        """Train, with the last layer watched."""
        import torch

        from rankrise.lab.experiments.kinds._modular_parts import train_modular

        device = torch.device(assignment.device or ("cuda" if torch.cuda.is_available() and spec.p > 64 else "cpu"))
        reached = train_modular(
            spec, assignment.folder, config=assignment.config, device=device, tick=Ticker(assignment.progress)
        )
        if reached < spec.num_steps:
            return Ended("diverged", f"The loss was no longer finite at step {reached}. Try a smaller learning rate.")
        return Ended("finished")

    def num_numbers(self, spec: ModularSpec) -> int:
        """Weights with the two moments of each, and the activations of the whole table."""
        return 3 * _num_weights(spec) + spec.p**2 * 8 * spec.width

    def guess_seconds(self, spec: ModularSpec, *, on_gpu: bool) -> float:
        """The number of steps times the seconds that a step takes."""
        samples = spec.batch_size or spec.p**2 * spec.train_share
        of_step = 5e-4 + samples * _num_weights(spec) * 6 / (2e13 if on_gpu else 2e10)
        return 1 + spec.num_steps * of_step * (2 if spec.precision == "fp64" else 1)


def _num_weights(spec: ModularSpec) -> int:
    of_block = {"mlp": 2, "transformer": 12}[spec.network]
    return of_block * spec.width**2 + 2 * spec.p * spec.width


def dtype_of(spec: ModularSpec) -> "torch.dtype":
    """Dtype of the weights."""
    import torch

    return torch.float64 if spec.precision == "fp64" else torch.float32
