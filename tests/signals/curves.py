"""Curves whose stages are known: planted staircases, and smooth losses that have none."""

import numpy as np
from scipy.signal import lfilter


def ar_noise(rng, n, rho):
    """Stationary AR(1) noise of standard deviation 1."""
    shocks = rng.standard_normal(n) * np.sqrt(1 - rho**2)
    shocks[0] = rng.standard_normal()
    return lfilter([1.0], [1.0, -rho], shocks)


def steps_of(rng, n, kind):
    if kind == "even":
        return np.linspace(0, 10_000, n)
    if kind == "log":
        return np.geomspace(1, 10_000, n)
    return np.sort(rng.uniform(0, 10_000, n))


def staircase(seed, *, noise=0.1, trend=None, clock=None, rho=None, num=None, n=None):
    """A staircase with 2 to 6 drops; `noise` is its standard deviation over the smallest drop.

    Returns:
        steps, values, midpoints, spacing (of each midpoint: the smaller gap to a neighbour or an end).
    """
    rng = np.random.default_rng([1, seed])
    n = n or int(rng.integers(300, 1001))
    clock = clock or rng.choice(["even", "log", "irregular"])
    t = steps_of(rng, n, clock)
    num = num or int(rng.integers(2, 7))
    x = np.log(t) if clock == "log" else t  # stages spread over the clock of the samples
    gaps = rng.uniform(0.6, 1.4, num + 1)
    ends = np.concatenate([[0], np.cumsum(gaps) / gaps.sum()])
    m = x[0] + (x[-1] - x[0]) * ends[1:-1]
    gap = np.diff(x[0] + (x[-1] - x[0]) * ends)
    spacing = np.minimum(gap[:-1], gap[1:])
    width = spacing * rng.uniform(0.02, 0.06, num)  # scale of the logistic; 10% to 90% takes 4.4 of them
    drop = rng.uniform(1.0, 3.0, num)
    y = (drop / (1 + np.exp(np.clip((x[:, None] - m) / width, -50, 50)))).sum(1)
    if trend if trend is not None else rng.random() < 0.5:
        t0 = 10_000 * 10 ** rng.uniform(-2.5, -1)
        y = y + rng.uniform(0.5, 3) * (1 + t / t0) ** -rng.uniform(0.2, 1.0)
    rho = rng.choice([0.0, 0.5, 0.8]) if rho is None else rho
    y = y + noise * drop.min() * ar_noise(rng, n, rho)
    if clock == "log":
        return t, y, np.exp(m), np.exp(m) * spacing
    return t, y, m, spacing


def smooth(seed, *, noise=None, rho=None, n=None):
    """A power law with correlated noise; a third each bare, with warm-up, and with warm-up and a cosine."""
    rng = np.random.default_rng([2, seed])
    n = n or int(rng.integers(300, 1001))
    kind = ("bare", "warm", "cosine")[seed % 3]
    t = steps_of(rng, n, rng.choice(["even", "log", "irregular"]))
    s = t / 10_000
    warm = rng.uniform(0.01, 0.1)
    rate = np.ones(n) if kind == "bare" else np.minimum(s / warm, 1)
    if kind == "cosine":
        rate = np.where(s > warm, 0.5 * (1 + np.cos(np.pi * (s - warm) / (1 - warm))), rate)
    clock = np.concatenate([[0], np.cumsum(0.5 * (rate[1:] + rate[:-1]) * np.diff(s))])
    t0 = 10 ** rng.uniform(-3, -1)
    y = (1 + clock / t0) ** -rng.uniform(0.1, 1.0)
    if kind == "cosine":
        y = y + rng.uniform(0, 0.1) * np.ptp(y) * rate  # noise of the gradient, annealed away with the rate
    rho = rng.choice([0.0, 0.5, 0.8, 0.9]) if rho is None else rho
    noise = 10 ** rng.uniform(-2.5, -0.8) if noise is None else noise
    return t, 3 * (y + noise * np.ptp(y) * ar_noise(rng, n, rho))


def matches(midpoints, planted, spacing, tolerance=0.05):
    """For each detected midpoint, the planted stage it stands for, or −1; each planted stage is used once."""
    free, out = set(range(len(planted))), []
    for m in midpoints:
        near = [j for j in free if abs(m - planted[j]) <= tolerance * spacing[j]]
        best = min(near, key=lambda j: abs(m - planted[j]), default=-1)
        free.discard(best)
        out.append(best)
    return out
