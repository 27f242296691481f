"""Fit the coefficients of the confidence: `PYTHONPATH=src python tests/signals/calibrate.py [curves]`, minutes."""

import sys

import numpy as np
from scipy.optimize import minimize
from tests.signals.curves import matches, smooth, staircase

from rankrise.signals._analysis import analyse
from rankrise.signals._drops import evidence

FIRST = 100_000  # seeds from here on; the tests stay below


def any_noise(seed):
    """A staircase whose noise is 3% to 100% of its smallest drop."""
    rng = np.random.default_rng([3, seed])
    return staircase(seed, noise=10 ** rng.uniform(-1.5, 0), rho=rng.choice([0.0, 0.5, 0.8, 0.9]))


def rows(seed):
    for kind, curve in enumerate((smooth(seed), staircase(seed), any_noise(seed))):
        t, y, *planted = curve
        found = analyse(t, y, resolution=2e-3, closed=True).findings
        right = matches([f.midpoint for f in found], *planted) if planted else [-1] * len(found)
        for f, r in zip(found, right, strict=True):
            yield (kind, r >= 0, *evidence(f.drop, f.shape))


def main(num):
    table = np.array([row for seed in range(FIRST, FIRST + num) for row in rows(seed)], dtype=float)
    x, right = np.column_stack([np.ones(len(table)), table[:, 2:]]), table[:, 1]

    def loss(c):
        logit = x @ c
        return np.mean(np.logaddexp(0, logit) - right * logit) + 1e-4 * c[1:] @ c[1:]

    c = minimize(loss, np.array([-9.0, 3, 2, -2])).x
    p = 1 / (1 + np.exp(-x @ c))
    sys.stdout.write(f"{len(table)} drops; coefficients {c.round(2).tolist()}\n")
    for low, high in ((0, 0.1), (0.1, 0.5), (0.5, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01)):
        k = (p >= low) & (p < high)
        if k.any():
            sys.stdout.write(f"  {low}-{high}: n {k.sum()}, mean confidence {p[k].mean():.3f}, ")
            sys.stdout.write(f"right {right[k].mean():.3f}\n")
    for kind in range(3):
        k = table[:, 0] == kind
        sys.stdout.write(f"  kind {kind}: {k.sum()} drops, confident wrong {(k & (p > 0.5) & (right == 0)).sum()}, ")
        sys.stdout.write(f"right below 0.5: {(k & (p < 0.5) & (right == 1)).sum()}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
