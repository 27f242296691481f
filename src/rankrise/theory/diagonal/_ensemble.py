"""Stages of many small networks: how often coordinates leave and tie, and how far a prediction at finite α errs.

Networks are solved one after another. Gradients are a fifth of the time of an eight-weight head, so that stacking heads
to share them would save a fifth at most; the rest is the control of steps, which differs from head to head. Several
processors take batches of heads, as `rankrise sweep toy-ensemble` does.

Symbols:
    T_k     rescaled time of the k-th stage
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise._arguments import did_you_mean
from rankrise._tables import table
from rankrise.theory._status import Status
from rankrise.theory._tasks import gaussian_start
from rankrise.theory.diagonal._algorithm import incremental_stages
from rankrise.theory.diagonal._convergence import stage_times
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork
from rankrise.theory.diagonal._stage_records import Stages

_LEVELS = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class StageEnsemble:
    """The stages of n networks in the limit α → 0.

    Attributes:
        orders: The winners of the stages of each network, n tuples.
        times: T_1 ... T_K of each network, (n, K) with the largest K; inf after a network's last stage.
        num_stages: Stages of each network, (n,).
        num_left: Coordinates that left the support, summed over the stages of each network, (n,).
        num_ties: Stages at which several coordinates tied, (n,).
        smallest_gap: The smallest lead of a winner, (Δ₂ - Δ₁) / Δ₁, over the stages, (n,); inf where no winner had a
            rival.
        prediction_error: Largest relative error of the predicted activation times of a run at finite α, (n,); NaN where
            no run was asked for.
        statuses: How Algorithm 1 ended, n.
    """

    orders: tuple[tuple[int, ...], ...]
    times: Tensor
    num_stages: Tensor
    num_left: Tensor
    num_ties: Tensor
    smallest_gap: Tensor
    prediction_error: Tensor
    statuses: tuple[Status, ...]

    @property
    def last_time(self) -> Tensor:
        """T_K of each network, (n,); 0 without a stage."""
        return torch.where(self.times.isfinite(), self.times, 0.0).amax(dim=1)

    @property
    def numbers(self) -> dict[str, Tensor]:
        """What is one number for each network, by name, each (n,)."""
        return {
            "num_stages": self.num_stages,
            "num_left": self.num_left,
            "num_ties": self.num_ties,
            "last_time": self.last_time,
            "smallest_gap": self.smallest_gap,
            "prediction_error": self.prediction_error,
        }

    def quantiles(self, name: str, levels: Sequence[float] = _LEVELS) -> Tensor:
        """Quantiles over networks of one of the numbers; networks where it is not finite are left out.

        Args:
            name: One of `numbers`.
            levels: Between 0 and 1.

        Raises:
            ValueError: There is no such number.
        """
        known = self.numbers
        if name not in known:
            raise ValueError(f"`name` must be one of {', '.join(known)}; got {name!r}. {did_you_mean(name, known)}")
        values = known[name].double()
        values = values[values.isfinite()]
        if len(values) == 0:
            return torch.full((len(levels),), torch.nan, dtype=torch.float64)
        return torch.quantile(values, torch.tensor(levels, dtype=torch.float64))

    def __str__(self) -> str:
        """Return a row for each number: its quantiles over networks."""
        rows = []
        for name in self.numbers:
            found = zip(_LEVELS, self.quantiles(name).tolist(), strict=True)
            rows.append({"number": name, **{f"{level:.0%}": value for level, value in found}})
        return table(rows, left=("number",))


def stage_ensemble(
    networks: Iterable[DiagonalNetwork],
    *,
    log10_alpha: float | None = None,
    num_predicted: int | None = None,
    seed: int = 0,
    t_end: float = math.inf,
    on_network: Callable[[int], None] | None = None,
) -> StageEnsemble:
    """Run Algorithm 1 on many networks, and predict runs at a finite α if one is given.

    An eight-weight head with 200 samples of 10 tokens takes 0.3 s of processor time, with a run at finite α three times
    that. Networks are taken one at a time, so that a generator keeps memory small.

    Args:
        networks: The networks; they may differ in size.
        log10_alpha: log10 α of a run from a Gaussian θ0 for each network, whose activation times are set against those
            of the finite-α form; None for the limit alone.
        num_predicted: Runs at finite α are made for so many networks only, the first ones; for all if None.
        seed: θ0 of network n has the seed `seed + n`.
        t_end: Leave out stages after this rescaled time.
        on_network: Called with the number of networks that are done, for progress.

    Raises:
        ValueError: There is no network, or as for `incremental_stages`.

    >>> from rankrise import theory
    >>> tasks = [theory.teacher_task(samples=20, tokens=3, dim=2, seed=seed) for seed in range(3)]
    >>> found = stage_ensemble(theory.attention_head(task.x, task.y) for task in tasks)
    >>> found.num_stages.tolist(), found.quantiles("num_left", [0.5]).tolist()
    ([4, 4, 4], [0.0])
    """
    found: list[Stages] = []
    errors: list[float] = []
    for net in networks:
        stages = incremental_stages(net, t_end=t_end)
        wanted = log10_alpha is not None and (num_predicted is None or len(found) < num_predicted)
        errors.append(_prediction_error(net, stages, log10_alpha, seed + len(found)) if wanted else math.nan)
        found.append(stages)
        if on_network is not None:
            on_network(len(found))
    if not found:
        raise ValueError("`networks` must hold at least one network; got none: pass a list or a generator of them.")
    return StageEnsemble(
        orders=tuple(stages.coordinates for stages in found),
        times=torch.nn.utils.rnn.pad_sequence(
            [stages.times for stages in found], batch_first=True, padding_value=math.inf
        ),
        num_stages=torch.tensor([len(stages.coordinates) for stages in found]),
        num_left=torch.tensor([sum(len(c.left) for c in stages.certificates) for stages in found]),
        num_ties=torch.tensor([sum(len(group) > 1 for group in stages.groups) for stages in found]),
        smallest_gap=torch.tensor(
            [min((c.winner_gap for c in stages.certificates), default=math.inf) for stages in found],
            dtype=torch.float64,
        ),
        prediction_error=torch.tensor(errors, dtype=torch.float64),
        statuses=tuple(stages.status for stages in found),
    )


def _prediction_error(net: DiagonalNetwork, stages: Stages, log10_alpha: float | None, seed: int) -> float:
    """The largest relative error of the predicted activation times of one run; NaN if nothing activates."""
    assert log10_alpha is not None
    u0, v0 = gaussian_start(net.num_weights, seed=seed)
    return float(stage_times(net, u0, v0, log10_alphas=[log10_alpha], stages=stages).prediction_errors[0])
