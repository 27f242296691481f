"""One step of RODAS, an L-stable Rosenbrock method of order 4(3), for systems with few non-zero Jacobian columns.

Symbols:
    s       state, p numbers
    f(s)    right-hand side ds/dt
    J       ∂f/∂s, non-zero only in the columns `active`
    γ, a, c coefficients of Hairer & Wanner, Solving Ordinary Differential Equations II, section IV.10 (RODAS)
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgetrf, dgetrs

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]

_GAMMA = 0.25
_A = (
    (1.544,),
    (0.9466785280815826, 0.2557011698983284),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0),
)
_C = (
    (-5.6688,),
    (-2.430093356833875, -0.2063599157091915),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160),
    (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054),
)


def rodas_step(
    f: Callable[[Array], Array], s: Array, slope: Array, columns: Array, active: Index, h: float
) -> tuple[Array, Array]:
    """Advance ds/dt = f(s) by h.

    Each stage solves (I/(γh) - J) k = f(·) + Σ c_j k_j / h. Only the rows and columns `active` are coupled, so the cost
    is one factorisation of that small block; the other rows follow by substitution.

    Args:
        f: Right-hand side, autonomous.
        s: State, (p,).
        slope: f(s).
        columns: J[:, active], (p, k).
        active: The k coordinates whose columns are not zero.
        h: Step.

    Returns:
        The new state and the estimate of its error, both (p,); both are not finite if the step was far too long.

    >>> s, error = rodas_step(lambda s: -s, np.ones(1), -np.ones(1), -np.ones((1, 1)), np.array([0]), 0.1)
    >>> bool(abs(s[0] - np.exp(-0.1)) < 1e-7)
    True
    """
    inverse = 1.0 / (_GAMMA * h)
    if len(active):
        lu, pivots, _ = dgetrf(inverse * np.eye(len(active)) - columns[active])

    def solve(right: Array) -> Array:
        k: Array = right / inverse
        if len(active):
            block, _ = dgetrs(lu, pivots, right[active])
            k += columns @ block / inverse
            k[active] = block
        return k

    stages = [solve(slope)]
    for a, c in zip(_A, _C, strict=True):
        at = s + sum(weight * k for weight, k in zip(a, stages, strict=True))
        stages.append(solve(f(at) + sum(weight * k for weight, k in zip(c, stages, strict=True)) / h))
    return at + stages[-1], stages[-1]
