"""Algorithm 1 on many heads that differ in their seed only."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind, check_at_least, toy_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from rankrise.theory import DiagonalNetwork, Status


@dataclass(frozen=True, kw_only=True)
class EnsembleSpec(TheorySpec):
    """Stages of many heads in the limit, and of some the error of the prediction at a finite α.

    Head n of the run has the seed `seed * num_heads + n`, so that runs with other seeds are of other heads.

    Args:
        num_heads: Heads of the run.
        num_predicted: The heads of which a run at finite α is made and predicted, the first ones.
        log10_alpha: log10 α of these runs.
    """

    num_heads: int
    num_predicted: int = 0
    log10_alpha: float = -32.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("num_heads", self.num_heads, 1)
        check_at_least("num_predicted", self.num_predicted, 0)


class EnsembleKind(ToyKind[EnsembleSpec]):
    """Solved by `theory.stage_ensemble`."""

    name = "ensemble"
    title = "Algorithm 1 on many heads"
    spec = EnsembleSpec

    def initial_weights(self, spec: EnsembleSpec) -> "dict[str, Tensor]":
        """Nothing: each head has a start of its own."""
        return {}

    def record(self, spec: EnsembleSpec, tick: Tick) -> Recording:
        """Save a row for every number of every head, and its stage times."""
        import numpy as np

        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import path_rows

        first = spec.seed * spec.num_heads
        found = theory.stage_ensemble(
            _heads(spec, first),
            log10_alpha=spec.log10_alpha,
            num_predicted=spec.num_predicted,
            seed=first,
            on_network=lambda done: tick(done / spec.num_heads),
        )
        known = list(theory.Status)
        numbers = {name: values.double().numpy() for name, values in found.numbers.items()}
        numbers["status_of_head"] = np.array([float(known.index(status)) for status in found.statuses])
        blocks = [path_rows(name, [values], circuit="") for name, values in numbers.items()]
        blocks.append(path_rows("stage_time", found.times.T.numpy(), circuit=""))
        whole = [block.filter(np.isfinite(block["value"].to_numpy())) for block in blocks]
        return Recording(whole, _worst(found.statuses))

    def num_numbers(self, spec: EnsembleSpec) -> int:
        """The data of one head, and a few numbers of every head."""
        return 2 * toy_size(spec.task) + 6 * spec.task.dim * spec.num_heads

    def guess_seconds(self, spec: EnsembleSpec, *, on_gpu: bool) -> float:
        """A head takes half a second, and one whose run is made too three times that."""
        return 1 + 0.5 * (spec.num_heads + 2 * min(spec.num_predicted, spec.num_heads))


def _heads(spec: EnsembleSpec, first: int) -> "Iterator[DiagonalNetwork]":
    from rankrise.lab.experiments.kinds._toy_parts import toy_network

    for seed in range(first, first + spec.num_heads):
        yield toy_network(spec.task, seed)


def _worst(statuses: "Sequence[Status]") -> "Status":
    """Finished, unless a head ended in another way."""
    from rankrise.theory import Status

    return next((status for status in statuses if status is not Status.FINISHED), Status.FINISHED)
