"""Which rank the function needs: outputs of the tuned network with its changes cut to rank r, against its own outputs.

The symbols are those of `_cuts` and `_distance`. Beside each distance stands the share of the energy that the same cut
leaves out of the weights, `Σ_{i>r} σ_i² / Σ σ_i²`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from rankrise.checkpoints.function._cuts import ChangedMatrix, CutNetwork
from rankrise.checkpoints.function._distance import Distance, Forward, Inputs, Judge, logits_of


@dataclass(frozen=True)
class FunctionPoint:
    """What was measured of the network when the changes of one part were cut to one rank."""

    rank: int
    distance: float  # D(r); 1 at rank 0
    agreement: float  # share of the inputs whose largest output is the same one as in the tuned model
    loss: float | None  # cross-entropy, where labels are known
    control: float | None  # D with the same singular values in random directions
    energy_left: float  # Σ_{i>r} σ_i² / Σ σ_i² over the part


@dataclass(frozen=True)
class FunctionPart:
    """All changes, those of one circuit, or those of one layer; everything else keeps its tuned values."""

    circuit: str | None  # "kq", "vo" or "linear"; None for a part with all circuits
    layer: int | None  # −1 for weights in no block; None for a part with all layers
    share: float  # E‖f_0 − f‖² with only this part cut, divided by the same with all changes cut
    points: tuple[FunctionPoint, ...]

    def rank(self, error: float = 0.05) -> int:
        """The smallest measured r with D(r′) ≤ `error` for all measured r′ ≥ r: what the function needs."""
        return _settles(self.points, [point.distance for point in self.points], error)

    def energy_rank(self, error: float = 0.05) -> int:
        """The smallest measured r that leaves out at most `error` of the energy: what the weights need."""
        return _settles(self.points, [point.energy_left for point in self.points], error)


def _settles(points: Sequence[FunctionPoint], values: Sequence[float], error: float) -> int:
    above = [i for i, value in enumerate(values) if not value <= error]
    return points[min(above[-1] + 1, len(points) - 1)].rank if above else points[0].rank


@dataclass(frozen=True)
class FunctionRank:
    """What `function_rank` measured; `whole` is the cut of all changes at once."""

    parts: tuple[FunctionPart, ...]
    num_inputs: int
    num_matrices: int
    base_loss: float | None  # of f_0, where labels are known; `tuned_loss` is that of f
    tuned_loss: float | None

    @property
    def whole(self) -> FunctionPart:
        """The part of all changes."""
        return self.parts[0]

    def to_json(self) -> dict[str, Any]:
        """Return the result as values that JSON can hold."""
        return asdict(self)


def function_rank(
    base: nn.Module,
    tuned: nn.Module,
    inputs: Inputs,
    *,
    ranks: Sequence[int] | None = None,
    forward: Forward = logits_of,
    batch_size: int = 32,
    seed: int = 0,
) -> FunctionRank:
    r"""Measure how many directions of its changes a tuned network uses, on given inputs.

    Every linear weight W becomes `W⁰ + Σ_{i≤r} σ_i u_i v_iᵀ`, the base plus the best part of rank r of its own change.
    Embeddings, norms and biases keep their tuned values, so that `f_0` is not the base model. Then

        D(r) = E‖f_r − f‖² / E‖f_0 − f‖²

    with the outputs f of the tuned model. D(0) = 1, and D is 0 where r is the largest rank. The same is measured for
    the weights of each circuit alone ("kq": queries and keys, "vo": values and outputs, "linear": all others) and for
    those of each layer alone. Queries, keys and values that one parameter holds are cut apart.

    The control replaces all singular vectors by random ones of the same sizes σ_i, i ≤ r. Where D is small and the
    control near 1 or above, directions matter and sizes do not.

    D does not tell whether a network *trained* at rank r would be as good, because the rest is not fitted again.

    Cost: one SVD in float64 for every changed matrix, and two passes over the inputs for each part and rank.

    Args:
        base: What training started from.
        tuned: What it ended with; neither model is changed.
        inputs: As `Judge` takes them: a tensor, or named tensors of one length, `labels` for losses.
        ranks: The ranks to measure besides 0 and the largest; by default 1, 2, 3, 4, 6, 8, 12, 16, …
        forward: Takes a model and a batch of `inputs`, and returns the outputs.
        batch_size: Number of inputs that are run at a time.
        seed: Seed of the random directions of the control.

    Raises:
        ValueError: The models do not have the same parameters, no linear weight differs, or there are no inputs.

    >>> import copy
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    >>> tuned = copy.deepcopy(base)
    >>> with torch.no_grad():
    ...     u, v = torch.randn(8, 1, generator=generator), torch.randn(1, 8, generator=generator)
    ...     _ = tuned[0].weight.add_(u @ v)
    >>> found = function_rank(base, tuned, torch.randn(20, 8, generator=generator).double())
    >>> found.whole.points[0].distance, found.whole.points[1].distance < 1e-12, found.whole.rank()
    (1.0, True, 1)

    References:
        Sharma, Ash, Misra, "The truth is in there" (arXiv 2312.13558), cut weights; here their changes are cut.
    """
    network = CutNetwork(base, tuned, split=True)
    judge = Judge(tuned, inputs, forward=forward, batch_size=batch_size)
    changes = network.changes
    measured = _ranks(ranks, max(c.max_rank for c in changes))
    generator = torch.Generator().manual_seed(seed)
    groups: list[tuple[str | None, int | None, list[ChangedMatrix]]] = [(None, None, list(changes))]
    circuits = dict.fromkeys(change.circuit for change in changes)
    groups += [(circuit, None, [c for c in changes if c.circuit == circuit]) for circuit in circuits]
    layers = dict.fromkeys(change.layer for change in changes)
    groups += [(None, layer, [c for c in changes if c.layer == layer]) for layer in layers]
    parts, joint, starts = [], math.nan, None
    for part_circuit, part_layer, group in groups:
        at_zero = _distance(network, judge, group, 0)
        if starts is None:
            joint, starts = at_zero.squared, at_zero
        most = max(c.max_rank for c in group)
        points = []
        for rank in dict.fromkeys(min(rank, most) for rank in measured):
            found = at_zero if rank == 0 else _distance(network, judge, group, rank)
            random = _distance(network, judge, group, rank, generator)
            points.append(
                FunctionPoint(
                    rank,
                    _ratio(found.squared, at_zero.squared),
                    found.agreement,
                    found.loss,
                    _ratio(random.squared, at_zero.squared),
                    _energy_left(group, rank),
                )
            )
        parts.append(FunctionPart(part_circuit, part_layer, _ratio(at_zero.squared, joint), tuple(points)))
    network.cut({})
    assert starts is not None
    return FunctionRank(tuple(parts), judge.num_inputs, len(changes), starts.loss, judge.distance(network.model).loss)


def _distance(
    network: CutNetwork,
    judge: Judge,
    group: Sequence[ChangedMatrix],
    rank: int,
    generator: torch.Generator | None = None,
) -> Distance:
    """Cut the changes of the group and leave all others whole; with a generator, cut them in random directions."""
    matrices = {c.name: c.cut(c.max_rank) for c in network.changes}
    for c in group:
        r = min(rank, c.max_rank)
        matrices[c.name] = c.cut(r) if generator is None else c.with_random_directions(r, generator)
    network.set(matrices)
    return judge.distance(network.model)


def _ranks(ranks: Sequence[int] | None, most: int) -> list[int]:
    if ranks is None:
        ranks, rank = [], 1
        while rank < most:
            ranks = [*ranks, rank]
            rank = rank + 1 if rank < 4 else int(1.5 * rank) if rank & (rank - 1) == 0 else rank * 4 // 3
    if any(type(rank) is not int or rank < 0 for rank in ranks):
        raise ValueError(f"`ranks` must be whole numbers of at least 0; got {list(ranks)}.")
    return sorted({0, most, *(rank for rank in ranks if rank < most)})


def _energy_left(group: Sequence[ChangedMatrix], rank: int) -> float:
    total = math.fsum(float(c.sigma.double().square().sum()) for c in group)
    return math.fsum(float(c.sigma[rank:].double().square().sum()) for c in group) / total


def _ratio(squared: float, whole: float) -> float:
    if whole == 0:
        return 1.0 if squared == 0 else math.inf
    return squared / whole
