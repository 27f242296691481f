"""LoRA ranks by what the function needs: parameters are spent where they bring the outputs closest.

The symbols are those of `_cuts` and `_distance`, and these:

    c_i       parameters that one direction of module i costs
    D_i(r)    D where the change of module i alone is cut to rank r and everything else has its tuned values
    D(r_1 …)  D where all changes are cut, to r_1, r_2, …
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rankrise.checkpoints.function._cuts import ChangedMatrix, CutNetwork
from rankrise.checkpoints.function._distance import Forward, Inputs, Judge, logits_of

OnModule = Callable[[str, int, int], None]  # name, how many are done, of how many
_NOTHING = 1e-3  # a module whose D_i is below this share of the distance that is asked for needs no direction


@dataclass(frozen=True)
class FunctionRanks:
    """Ranks for a distance of the outputs."""

    ranks: Mapping[str, int]  # name of a module to its rank; modules of rank 0 are left out
    error: float  # D that was asked for
    distance: float  # D on the inputs that chose the ranks
    held_out: float | None  # D on the other half of the inputs; None where there is one input
    parameters: int
    num_passes: int  # how many times the inputs that chose the ranks were run through the network


@dataclass(frozen=True)
class _Step:
    """A higher rank for one module, as one step on its curve."""

    module: str
    rank: int  # rank of the module after the step
    worth: float  # how much D_i falls per parameter


def choose_ranks(
    base: nn.Module,
    tuned: nn.Module,
    inputs: Inputs,
    error: float,
    *,
    forward: Forward = logits_of,
    batch_size: int = 32,
    on_module: OnModule | None = None,
) -> FunctionRanks:
    """Choose a LoRA rank for every changed module so that the outputs are within `error` of the tuned model's.

    D_i is measured for every module at ranks 0, 1, 2, 3, 4, 6, 8, 12, …, while everything else keeps its tuned values.
    The steps between these ranks are sorted by the fall of D_i per parameter (on the convex hull of each curve, so that
    the steps of one module come in order), and taken in this order until the joint D ≤ `error`; a bisection finds the
    last step that is needed. Then single directions are taken back while the joint D allows it, beginning with those
    that were worth least.

    The order is the best one as long as the effects of single cuts add up, as those of small cuts do. Nothing but D
    itself shows that the ranks are good enough: they are chosen on every second input, and D is measured again on the
    other inputs.

    Cost: one SVD for every changed matrix, about ten passes over the inputs for every module, and one for each
    direction that is tried at the end.

    Args:
        base: What training started from.
        tuned: What it ended with.
        inputs: As for `function_rank`.
        error: D to reach, between 0 and 1.
        forward: Takes a model and a batch of `inputs`, and returns the outputs.
        batch_size: Number of inputs that are run at a time.
        on_module: Called for every module whose D_i is measured.

    Raises:
        ValueError: `error` is not between 0 and 1, the models do not belong together, or nothing differs.

    >>> import copy, torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> base = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    >>> tuned = copy.deepcopy(base)
    >>> with torch.no_grad():
    ...     u, v = torch.randn(8, 2, generator=generator), torch.randn(2, 8, generator=generator)
    ...     _ = tuned[0].weight.add_(u @ v)
    >>> choose_ranks(base, tuned, torch.randn(40, 8, generator=generator).double(), 1e-6).ranks
    {'0': 2}
    """
    if not 0 < error < 1:
        raise ValueError(f"`error` must be between 0 and 1; got {error}.")
    network = CutNetwork(base, tuned, split=False)
    chosen, others = _halves(inputs)
    search = _Search(network, Judge(tuned, chosen, forward=forward, batch_size=batch_size))
    steps: list[_Step] = []
    for number, change in enumerate(network.changes, 1):
        steps += _steps(change, search.own_curve(change, _NOTHING * error))
        if on_module is not None:
            on_module(change.name, number, len(network.changes))
    steps.sort(key=lambda step: (-step.worth, step.rank))
    ranks = search.first_within(steps, error)
    distance = search.take_back(ranks, steps, error)
    held_out = None
    if others is not None:
        again = _Search(network, Judge(tuned, others, forward=forward, batch_size=batch_size))
        held_out = again.joint(ranks)
    costs = {change.name: change.cost for change in network.changes}
    return FunctionRanks(
        {name.removesuffix(".weight"): rank for name, rank in ranks.items() if rank},
        error,
        distance,
        held_out,
        sum(costs[name] * rank for name, rank in ranks.items()),
        search.num_passes,
    )


class _Search:
    """The distances D of a network's cuts, and how many were measured."""

    def __init__(self, network: CutNetwork, judge: Judge) -> None:
        self._network, self._judge = network, judge
        self.num_passes = 0
        self._start = 1.0
        self._start = self.joint({change.name: 0 for change in network.changes}) or 1.0

    def joint(self, ranks: Mapping[str, int]) -> float:
        """D with every change cut to its rank; a change without a rank is whole."""
        self._network.cut(ranks)
        self.num_passes += 1
        return self._judge.distance(self._network.model).squared / self._start

    def own_curve(self, change: ChangedMatrix, nothing: float) -> list[tuple[int, float]]:
        """D_i at ranks 0, 1, 2, … until it is at most `nothing`; a value is raised to the largest after it."""
        ranks, distances = [0], [self.joint({change.name: 0})]
        while distances[-1] > nothing and ranks[-1] < change.max_rank:
            ranks.append(min(_next_rank(ranks[-1]), change.max_rank))
            distances.append(self.joint({change.name: ranks[-1]}))
        for i in reversed(range(len(distances) - 1)):
            distances[i] = max(distances[i], distances[i + 1])
        return list(zip(ranks, distances, strict=True))

    def first_within(self, steps: Sequence[_Step], error: float) -> dict[str, int]:
        """Ranks after the fewest steps with D ≤ `error`, by bisection; whole changes where all steps do not suffice."""
        few, many = 0, len(steps)
        if self.joint(self._after(steps)) > error:
            return {change.name: change.max_rank for change in self._network.changes}
        while few < many:
            middle = (few + many) // 2
            few, many = (few, middle) if self.joint(self._after(steps[:middle])) <= error else (middle + 1, many)
        return self._after(steps[:many])

    def _after(self, steps: Sequence[_Step]) -> dict[str, int]:
        ranks = {change.name: 0 for change in self._network.changes}
        for step in steps:
            ranks[step.module] = max(ranks[step.module], step.rank)
        return ranks

    def take_back(self, ranks: dict[str, int], steps: Sequence[_Step], error: float) -> float:
        """Lower ranks one by one while D stays within `error`, beginning with those of the least worth; return D."""
        now = self.joint(ranks)
        waiting = list(dict.fromkeys(step.module for step in reversed(steps) if step.rank <= ranks[step.module]))
        while waiting:
            for name in list(waiting):
                after = self.joint(ranks | {name: ranks[name] - 1}) if ranks[name] else float("inf")
                if after <= error:
                    ranks[name], now = ranks[name] - 1, after
                else:
                    waiting.remove(name)
        return now


def _next_rank(rank: int) -> int:
    """The rank after this one in 1, 2, 3, 4, 6, 8, 12, 16 and so on."""
    if rank < 4:
        return rank + 1
    return rank * 3 // 2 if rank & (rank - 1) == 0 else rank * 4 // 3


def _steps(change: ChangedMatrix, curve: Sequence[tuple[int, float]]) -> list[_Step]:
    """The edges of the lower convex hull of D_i: their falls per parameter decrease."""
    steps, at = [], 0
    while at < len(curve) - 1:
        rank, distance = curve[at]
        worths = [(distance - d) / (change.cost * (r - rank)) for r, d in curve[at + 1 :]]
        best = max(range(len(worths)), key=lambda i: (worths[i], i))
        at += best + 1
        steps.append(_Step(change.name, curve[at][0], worths[best]))
    return steps


def _halves(inputs: Inputs) -> tuple[Inputs, Inputs | None]:
    """Every second input, and the other inputs."""
    tensors: Mapping[str, Tensor] = inputs if isinstance(inputs, Mapping) else {"": inputs}
    if min((len(t) for t in tensors.values()), default=0) < 2:
        return inputs, None
    first, second = ({n: t[k::2] for n, t in tensors.items()} for k in (0, 1))
    return (first, second) if isinstance(inputs, Mapping) else (first[""], second[""])
