"""How long a mode of a deep linear network takes to grow, and a learning rate that makes depths comparable.

Legend: N factors in a product, s the strength of a mode from s₀ to s₁, λ the eigenvalue of its data, η the learning
rate. Balanced factors obey ds/dt = N λ s^(2 − 2/N) (1 − s) (Saxe et al., arXiv 1312.6120; Arora et al.,
arXiv 1905.13655).
"""

import math

_REFERENCE_START = 1e-2
_STABLE = 0.9  # of η N λ, the curvature at s = 1 times the learning rate; gradient descent leaves a minimum at 2


def escape_time(num_factors: int, start: float, end: float = 0.5) -> float:
    """The time T(N, s₀) from s₀ to s₁ for λ = 1: the integral of ds / (N s^(2 − 2/N) (1 − s)).

    A mode of eigenvalue λ takes T / λ, and gradient descent T / (η λ) steps.

    Args:
        num_factors: N, two more than the layers of a linear sub-network.
        start: s₀.
        end: s₁.

    Raises:
        ValueError: N is below 1, or not 0 < s₀ ≤ s₁ < 1.

    >>> round(escape_time(2, 0.01), 4), round(math.log(99) / 2, 4)  # two factors: the logistic curve
    (2.2976, 2.2976)
    """
    if num_factors < 1 or not 0 < start <= end < 1:
        raise ValueError(
            f"`num_factors` must be at least 1, and 0 < `start` ≤ `end` < 1; got {num_factors}, {start:g}, {end:g}."
        )
    from scipy.integrate import quad

    def speed(log_s: float) -> float:  # ds = s du with u = log s
        s = math.exp(log_s)
        return math.exp((2 / num_factors - 1) * log_s) / (num_factors * (1 - s))

    return float(quad(speed, math.log(start), math.log(end), epsabs=0, epsrel=1e-10, limit=200)[0])


def balanced_learning_rate(num_factors: int, start: float, *, reference: float = 0.1, largest: float = 1.0) -> float:
    """A learning rate with which N factors escape from s₀ in the steps that two factors need from 1e-2.

    η(N, s₀) = min(η₂ T(N, s₀) / T(2, 1e-2), 0.9 / (N λ)). The first term makes escape times equal. The second keeps
    gradient descent stable; where it binds, the escape is slower, and no learning rate makes it faster. The rule is our
    own: "Implicit Greedy Rank Learning in Autoencoders via Overparameterized Linear Networks" (Sun et al., arXiv
    2107.01301) announces a principled one, which we have not read.

    Args:
        num_factors: N.
        start: s₀.
        reference: η₂, the rate of two factors.
        largest: λ, the largest eigenvalue of the data.

    Raises:
        ValueError: An argument is out of range.

    >>> round(balanced_learning_rate(2, 1e-2), 6), round(balanced_learning_rate(10, 1e-4), 6)
    (0.1, 0.09)
    """
    if not (reference > 0 and largest > 0):
        raise ValueError(f"`reference` and `largest` must be positive; got {reference:g} and {largest:g}.")
    equal = reference * escape_time(num_factors, start) / escape_time(2, _REFERENCE_START)
    return min(equal, _STABLE / (num_factors * largest))
