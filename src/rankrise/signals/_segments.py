"""The best curve made of straight lines: least squares with a price on every line, solved exactly.

    min over knots of  Σ_segments RSS(segment) + penalty · #segments

by dynamic programming over the last knot (Auger and Lawrence 1989), O(n²) additions with prefix sums for the RSS.
Lines need not meet, so a sudden drop is a jump and a slow one is a steep line.
"""

import numpy as np

from rankrise.signals._checks import Array

_SHORTEST = 3  # samples in a segment; one line through two of them says nothing


def segment(t: Array, y: Array, penalty: float) -> tuple[Array, list[tuple[int, int]]]:
    """Fit of y (n,) by lines over t, and the segments as half-open index ranges."""
    n = len(t)
    ones = np.ones(n)
    sums = np.zeros((6, n + 1))
    np.cumsum([ones, t, y, t * t, t * y, y * y], axis=1, out=sums[:, 1:])
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    previous = np.zeros(n + 1, dtype=np.int64)
    for end in range(_SHORTEST, n + 1):
        starts = slice(0, end - _SHORTEST + 1)
        cost = best[starts] + _rss(sums[:, end : end + 1] - sums[:, starts]) + penalty
        previous[end] = np.argmin(cost)
        best[end] = cost[previous[end]]
    ranges: list[tuple[int, int]] = []
    end = n
    while end > 0:
        ranges.append((int(previous[end]), end))
        end = int(previous[end])
    ranges.reverse()
    fit = np.concatenate([_line(t[a:b], y[a:b]) for a, b in ranges])
    return fit, ranges


def _rss(s: Array) -> Array:
    m, st, sy, stt, sty, syy = s
    vtt, vty, vyy = stt - st * st / m, sty - st * sy / m, syy - sy * sy / m
    slope_part = np.divide(vty * vty, vtt, out=np.zeros_like(vtt), where=vtt > 1e-14 * stt)
    rss: Array = np.maximum(vyy - slope_part, 0.0)
    return rss


def _line(t: Array, y: Array) -> Array:
    dt = t - t.mean()
    out: Array = y.mean() + dt * ((dt @ y) / (dt @ dt))
    return out
