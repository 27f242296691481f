"""The step of the stiff solver has the order of its method."""

import math

import numpy as np

from rankrise.theory._rosenbrock import rodas_step


def test_rodas_has_order_four() -> None:
    coupling = np.array([[1.0, 0.3], [0.3, 2.0]])

    def solve(steps: int) -> float:
        s = np.array([-1.0, -2.0])
        for _ in range(steps):
            slope = np.array([1.0, 0.5]) - coupling @ np.exp(s)
            columns = -coupling * np.exp(s)
            f = lambda s: np.array([1.0, 0.5]) - coupling @ np.exp(s)  # noqa: E731
            s, _ = rodas_step(f, s, slope, columns, np.arange(2), 1.0 / steps)
        return float(s[0])

    exact = solve(512)
    assert math.log2(abs(solve(8) - exact) / abs(solve(16) - exact)) > 3.5
