"""Curves with planted slingshots, and families of curves that have none."""

import numpy as np
from tests.signals.curves import ar_noise


def _steps(n=250, every=40):
    return every * np.arange(n, dtype=float)


def _norm(rng, n):
    return 10 + np.cumsum(np.abs(rng.normal(0.02, 0.01, n)))


def planted(seed, *, every=40, noise=0.0, total=12_000):
    """Cycles as they were seen in modular addition under Adam; `noise` is in decades.

    The loss falls for most of a cycle, rises a little while the norm grows ever faster, and jumps within a few steps;
    the norm then stays.

    Returns:
        steps, loss, norm, steps of the spikes.
    """
    rng = np.random.default_rng([11, seed])
    first, period = rng.uniform(2000, 3000), rng.uniform(1000, 1500)
    peaks = np.arange(first, total - period, period)
    steps = np.arange(0, peaks[-1] + 0.95 * period, every)
    ends = np.concatenate([[0.0], peaks, [peaks[-1] + period]])
    cycle = np.searchsorted(ends, steps, side="right") - 1
    phase = (steps - ends[cycle]) / np.diff(ends)[cycle]
    top, depth = rng.uniform(-4.5, -3.0), rng.uniform(2.5, 3.5)
    high = np.where(cycle == 0, 0.5, top)
    low = top - depth
    log_loss = high + (low - high) * (1 - np.exp(-phase / 0.15)) + 0.25 * phase**4
    gain = rng.uniform(0.3, 2.0, len(ends))
    norm = (
        15 + np.cumsum(np.concatenate([[0.0], gain]))[cycle] + gain[cycle] * np.exp((phase - 1) / 0.12) + 2e-6 * steps
    )
    return steps, 10 ** (log_loss + noise * rng.standard_normal(len(steps))), norm, peaks


def decay(rng, n):
    return 0.5 - 6 * np.linspace(0, 1, n) ** rng.uniform(0.3, 1.0)


def white_small(rng, n):
    return decay(rng, n) + 0.2 * rng.standard_normal(n), _norm(rng, n)


def white_large(rng, n):
    return decay(rng, n) + 0.5 * rng.standard_normal(n), _norm(rng, n)


def correlated(rng, n):
    return decay(rng, n) + 0.5 * ar_noise(rng, n, 0.9), _norm(rng, n)


def walking_loss(rng, n):
    return decay(rng, n) + np.cumsum(0.15 * rng.standard_normal(n)), _norm(rng, n)


def warm_restarts(rng, n):
    """Every restart lifts the loss, and the norm grows after the spike."""
    cycle = n // int(rng.integers(3, 7))
    phase = np.arange(n) % cycle / cycle
    log_loss = decay(rng, n) + 2 * np.exp(-10 * phase) + 0.05 * rng.standard_normal(n)
    return log_loss, 10 + np.cumsum(0.1 * (1 - phase))


def shrinking_norm(rng, n):
    log_loss = decay(rng, n)
    for peak in rng.integers(n // 3, n, 4):
        log_loss = np.maximum(log_loss, -5 + 3 * np.exp(-np.abs(np.arange(n) - peak) / 4))
    return log_loss, 20 - np.cumsum(np.abs(rng.normal(0.02, 0.01, n)))


def both_walk(rng, n):
    """Adversarial: the norm and the loss are random walks, so that by chance one runs up to the other's peak."""
    walk = np.cumsum(0.2 * rng.standard_normal(n))
    return decay(rng, n) + walk, 20 + np.cumsum(0.05 * rng.standard_normal(n))


FAMILIES = {
    family.__name__: family
    for family in (white_small, white_large, correlated, walking_loss, warm_restarts, shrinking_norm, both_walk)
}


def without(family, seed, *, n=250):
    """steps, loss, norm of a curve that has no slingshot."""
    log_loss, norm = FAMILIES[family](np.random.default_rng([12, list(FAMILIES).index(family), seed]), n)
    return _steps(n), 10**log_loss, norm
