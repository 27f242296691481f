"""What plain optimisers share for weights of any form: torch's optimisers by name, the order of samples, and checks.

Symbols:
    η, λ        learning rate and weight decay, the gradient of ½ λ ‖θ‖² added to that of L
    β, ε        Adam's decay rates of the two averages, and the number that it adds to the root of the second
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rankrise._arguments import did_you_mean

DIVERGED = 1e100  # a product as large as this has diverged; float64 still holds its square
_SMALLEST_LOG10_ALPHA = -300.0
_OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "gd": torch.optim.SGD,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}


def make_optimiser(
    name: str,
    weights: Sequence[Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
) -> torch.optim.Optimizer:
    """Return torch's optimiser of that name; β and ε are for Adam only."""
    more = {"betas": betas, "eps": eps} if name == "adam" else {}
    return _OPTIMISERS[name](weights, lr=learning_rate, weight_decay=weight_decay, **more)


def batches(num_samples: int, batch_size: int | None, seed: int) -> Iterator[Tensor | None]:
    """Yield, step by step, the samples to take: None for all of them, or the next batch of an epoch's random order."""
    if batch_size is None:
        while True:
            yield None
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.split(torch.randperm(num_samples, generator=generator), batch_size)


def check_descent(
    num_samples: int,
    log10_alpha: float,
    learning_rate: float,
    num_steps: int,
    optimiser: str,
    every: int,
    weight_decay: float,
    batch_size: int | None,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Refuse arguments that break their rule, in a sentence that says what to do."""
    if not _SMALLEST_LOG10_ALPHA <= log10_alpha < 0:
        raise ValueError(
            f"`log10_alpha` must be from {_SMALLEST_LOG10_ALPHA:g} to below 0 for an optimiser, which holds weights in "
            f"float64; got {log10_alpha}: use `solve_flow` or `solve_matrix_flow`, which work at any α."
        )
    if optimiser not in _OPTIMISERS:
        hint = did_you_mean(optimiser, _OPTIMISERS) or "Choose one of them."
        raise ValueError(f"`optimiser` must be one of {', '.join(map(repr, _OPTIMISERS))}; got {optimiser!r}. {hint}")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"`learning_rate` must be positive and finite; got {learning_rate}: try 0.01.")
    if num_steps < 0 or every < 1:
        raise ValueError(
            f"`num_steps` must be at least 0 and `every` at least 1; got {num_steps} and {every}: count whole steps."
        )
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"`weight_decay` must be zero or positive; got {weight_decay}: it is the λ of ½ λ ‖θ‖².")
    if (optimiser == "sgd") != (batch_size is not None):
        raise ValueError(
            f"`batch_size` must be given for 'sgd' and only there; got {batch_size} for {optimiser!r}: "
            "use 'gd' for all samples at each step."
        )
    if batch_size is not None and not 1 <= batch_size <= num_samples:
        raise ValueError(f"`batch_size` must be from 1 to N = {num_samples}; got {batch_size}: pick one between.")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas) or not 0 < eps < math.inf:
        raise ValueError(
            f"`betas` must be two numbers from 0 to below 1 and `eps` positive; got {betas} and {eps}: "
            "(0.9, 0.999) and 1e-8 are usual."
        )
