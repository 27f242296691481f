"""Runs of the theory: what is learned, and how a table is written. Every solver has a kind of its own beside this file.

α is given by its logarithm, because 1e-32 and 10^-1000000 are the same computation. Times are rescaled, t / log(1/α).
A run takes seconds to minutes on the CPU, so that one that was cut off starts over.

The table (layer 0; head 0 unless said; circuit "kq" is a = w_K ⊙ w_Q, "vo" is b = w_V ⊙ w_O):

| kind | step | scalars | rows by coordinate |
|---|---|---|---|
| flow | saved point | `time`, `loss` | `product`; at the last step `activation_time` of those that activated |
| stages | stage k = 0 … K | `time` T_k, `loss`, `joined`, `num_joined`, `num_left`, `gap`, `curvature` | `product` |
| matrix_flow | saved point | `time`, `loss` | `spectrum` |
| matrix_stages | stage k | `time`, `loss`, `product` that grew, certificate | `spectrum`, `predicted_time`, `flagged` |
| matrix_descent | saved point | `time`, `loss`, `optimiser_step` | `spectrum` |
| adam_phases | saved point | `time` as a part of the run | `loss_of_case`; `active_from`, -1 for never |
| robustness | saved point | `time`, `perturbed_at` | `product`, `product_perturbed`; head n is perturbation n |
| ensemble | stage k of `stage_time` | – | numbers of `theory.StageEnsemble`, `status_of_head`, `stage_time` |
| descent | saved point | `time`, `loss`, `optimiser_step` | `product`; `activation_time` |
| lazy | case | `alpha`, `time`, `kappa`, `initial_loss`, `lipschitz`, `error`, `bound`, `loss`, … | – |

The points of a robustness run are those of its perturbations one after another: head n has steps of its own. `time` of
Adam is η·step/log(1/α) as for the others, which is a convention, because its steps do not follow the gradient. `status`
at the last step is the position of the solver's status in `theory.Status`. Predicted times have no circuit: head n is
the n-th α, and the index counts stages. In a run of Adam's phases head n is the n-th case of (β₂, ε), and the index
counts the values of α, and coordinates within each α. In a run of an
ensemble the index is the head.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from rankrise.lab.experiments.kinds._kind import Assignment, ConfigField, Ended, Kind, Spec
from rankrise.lab.training import Report
from rankrise.store import create_run, has_run, resume_run

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from rankrise.lab.training import ProgressDisplay
    from rankrise.theory import Status

Tick: TypeAlias = Callable[[float], None]  # told of the part that is done
_PARTS = 1000  # in how many parts the progress of a run is counted
_SECONDS = 0.25  # between two reports of progress


@dataclass(frozen=True)
class ToyTask:
    """The paper's toy: an attention head with diagonal weights learns from Gaussian tokens.

    Args:
        dim: Dimension d of a token; the head has 2d weights.
        tokens: Tokens of a sequence.
        samples: Number of sequences.
        targets: Outputs of a random teacher head, with diagonal or with full matrices, or Gaussian noise that nothing
            generates.
        activation: None: the head alone. Else the head with a residual stream and a feed-forward block of fixed weights
            after it (Example 3.2 of the paper with one layer and one head), teacher alike.
        loss: ½‖·‖² per sample, or cross-entropy, with the largest of a target's entries as its label.
        l2: λ of a penalty ½ λ ‖q‖² on the products.
        layer_norm: Whether the output is LN(X + head(X)), with a LayerNorm without weights; the teacher has it too.

    Raises:
        ValueError: A number is out of its range.
    """

    dim: int = 10
    tokens: int = 10
    samples: int = 200
    targets: Literal["teacher", "full_teacher", "noise"] = "teacher"
    activation: Literal["gelu", "relu"] | None = None
    loss: Literal["mse", "cross_entropy"] = "mse"
    l2: float = 0.0
    layer_norm: bool = field(default=False, metadata={"omit_default": True})

    def __post_init__(self) -> None:
        for name in ("dim", "tokens", "samples"):
            check_at_least(name, getattr(self, name), 1)
        if not 0 <= self.l2 < math.inf:
            raise ValueError(f"`l2` must be zero or positive; got {self.l2!r}. Pass 0 for no penalty.")
        if self.layer_norm and self.activation is not None:
            raise ValueError("`layer_norm` must be false for a block with an activation. Leave one of them out.")


@dataclass(frozen=True, kw_only=True)
class TheorySpec(Spec):
    """What the specs of all theory runs share.

    Args:
        task: What is learned.
        seed: Seed of the task and of θ0.
    """

    task: ToyTask = field(default_factory=ToyTask)
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("t_end", "threshold", "noise", "duration", "learning_rate"):
            value = getattr(self, name, 1.0)
            if not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be positive and finite; got {value!r}. Pass a larger one.")
        for name in ("num_points", "head_dim", "trials", "num_steps", "batch_size"):
            if getattr(self, name, None) is not None:
                check_at_least(name, getattr(self, name), 1)
        if not -math.inf < getattr(self, "log10_alpha", -1.0) < 0:
            raise ValueError(
                f"`log10_alpha` must be negative and finite; got {getattr(self, 'log10_alpha', None)!r}. "
                "Pass -32 for α = 1e-32."
            )


S = TypeVar("S", bound=Spec)
T = TypeVar("T", bound=TheorySpec)


@dataclass(frozen=True)
class Recording:
    """The table of a theory run, in blocks, and how the solver ended."""

    blocks: "list[pa.RecordBatch]"
    status: "Status"


class TheoryKind(Kind[S]):
    """What all theory runs share: they are solved on the CPU, and written once they are solved."""

    def record(self, spec: S, tick: Tick) -> Recording:
        """Solve what a spec asks for."""
        raise NotImplementedError

    def initial_weights(self, spec: S) -> "dict[str, Tensor]":
        """The tensors of a run's `initial.safetensors`: none, unless a kind says otherwise."""
        return {}

    def execute(self, spec: S, assignment: Assignment) -> Ended:
        """Solve on the CPU; a run that was cut off starts over."""
        from rankrise.lab.experiments.kinds._toy_parts import status_rows
        from rankrise.theory import Status

        if has_run(assignment.folder):
            run = resume_run(assignment.folder, step=-1)
        else:
            initial = self.initial_weights(spec)
            run = create_run(
                assignment.folder, spec={"kind": "theory", "config": dict(assignment.config)}, initial=initial
            )
        try:
            recording = self.record(spec, Ticker(assignment.progress))
            for block in (*recording.blocks, status_rows(recording.blocks, recording.status)):
                run.append(block)
            run.seal()
        finally:
            run.close()
        usual = (Status.FINISHED, Status.T_END)
        message = "" if recording.status in usual else recording.status.remedy
        return Ended("diverged" if recording.status is Status.DIVERGED else "finished", message)


class ToyKind(TheoryKind[T]):
    """What all runs of the toy share: the data are made from the spec when the run begins."""

    parts: ClassVar[Mapping[str, ConfigField]] = {"task": ConfigField({"toy": ToyTask})}

    def initial_weights(self, spec: T) -> "dict[str, Tensor]":
        """The tensors of a run's `initial.safetensors`: θ0 before the factor α."""
        from rankrise.lab.experiments.kinds._toy_parts import toy_start

        return dict(zip(("u0", "v0"), toy_start(spec.task, spec.seed), strict=True))

    def data_name(self, spec: T) -> str:
        """The toy's teacher."""
        return "teacher"

    def in_words(self, record: Mapping[str, Any]) -> str:
        """The sizes of the toy's data, and where its targets come from."""
        task = record.get("task", {})
        sizes = f"{task.get('samples')} samples of {task.get('tokens')} tokens of dimension {task.get('dim')}"
        return f"{sizes} {'with random targets' if task.get('targets') == 'noise' else 'from a random teacher head'}"

    def num_numbers(self, spec: T) -> int:
        """Inputs, targets and the four matrices of a head, and the products at the points that are saved."""
        width = getattr(spec, "head_dim", None) or spec.task.dim
        points = getattr(spec, "num_points", 1) * getattr(spec, "trials", 1)
        return 2 * toy_size(spec.task) + 4 * spec.task.dim * width + 2 * spec.task.dim * points

    def guess_seconds(self, spec: T, *, on_gpu: bool) -> float:
        """What a gradient flow of the toy takes."""
        return 1 + 6e-5 * toy_size(spec.task)


class Ticker:
    """Hands the part of a run that is done on to whoever shows progress, a few times a second."""

    def __init__(self, progress: "ProgressDisplay | None") -> None:
        self._progress = progress
        self._begun = self._last = time.monotonic()

    def __call__(self, part: float) -> None:
        now = time.monotonic()
        if self._progress is None or now - self._last < _SECONDS:
            return
        self._last = now
        step = round(part * _PARTS)
        self._progress.update(Report(step, _PARTS, 1, 1, rate=step / (now - self._begun)))


def toy_size(task: ToyTask) -> int:
    """Numbers that the toy's data has."""
    return task.samples * task.tokens * task.dim


def check_at_least(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}; got {value!r}. Change it.")


def check_plain(task: ToyTask) -> None:
    """Refuse a task that a head with full matrices cannot have: another loss, a penalty, an activation, a LayerNorm."""
    if task.loss != "mse" or task.activation is not None or task.l2 or task.layer_norm:
        raise ValueError(
            f"A flow of full matrices must have the plain task; got {task!r}: use a flow of diagonal weights."
        )
