"""Stages of the gradient flow of 8-weight heads, known from Algorithm 1, found again in its sampled, noisy loss.

A stage counts where its drop is at least 5% of the first loss, five times the noise, and it stands apart: three times
its own width (10% to 90%) from the midpoint of any other of at least 2%.
"""

import numpy as np
import pytest
import torch
from tests.signals.curves import ar_noise

from rankrise import theory
from rankrise.signals import detect_stages, emergence_times

LARGE, NOTICED, APART = 0.05, 0.02, 3.0


def head(seed, log10_alpha, num=400):
    """Times (num,), losses (num,), products (num, 8), and for every stage its drop, midpoint and width."""
    task = theory.teacher_task(samples=200, tokens=10, dim=4, seed=seed)
    net = theory.attention_head(task.x, task.y)
    stages = theory.incremental_stages(net)
    levels = np.array([float(loss) for loss in stages.losses])
    drops = -np.diff(levels) / levels[0]
    last = max(k for k, drop in enumerate(drops) if drop >= 0.03)
    t_end = 1.3 * float(stages.times[last])
    generator = torch.Generator().manual_seed(seed)
    u0, v0 = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=log10_alpha, t_end=t_end)
    times, losses, q = (x.detach().numpy() for x in (flow.times, flow.losses, flow.products.abs()))
    return sampled(times, losses, q, levels, drops, num)


def sampled(times, losses, q, levels, drops, num):
    def when(share):  # each drop has gone so far
        return np.interp(-(levels[:-1] - share * (levels[:-1] - levels[1:])), -np.minimum.accumulate(losses), times)

    t = np.linspace(0, times[-1], num)
    products = np.stack([np.interp(t, times, column) for column in q.T], axis=1)
    return t, np.interp(t, times, losses), products, drops, when(0.5), when(0.9) - when(0.1)


def compare(t, loss, drops, midpoints, widths, seed):
    """Stages that count, those found of them, stages found, and those of them that are right."""
    noise = 0.01 * loss[0] * ar_noise(np.random.default_rng(seed), len(t), 0.5)
    found = detect_stages(t, loss + noise).midpoints
    noticed = np.flatnonzero((drops >= NOTICED) & (midpoints < t[-1]))
    known, width, drop = midpoints[noticed], widths[noticed], drops[noticed]
    gap = np.diff(np.concatenate([[0], known, t[-1:]]))
    gap = np.minimum(gap[:-1], gap[1:])
    counts = (drop >= LARGE) & (gap >= APART * width)
    hit = [bool((abs(found - m) <= 0.05 * g).any()) for m, g in zip(known[counts], gap[counts], strict=True)]
    near = (abs(found[:, None] - known) <= np.maximum(0.05 * gap, width)).any(1)
    pair = [
        ((known[:-1] < m) & (m < known[1:]) & (np.diff(known) < APART * (width[1:] + width[:-1]))).any() for m in found
    ]
    return len(hit), sum(hit), len(found), int((near | np.array(pair, dtype=bool)).sum())


@pytest.mark.parametrize(
    "seeds", [pytest.param((0, 3), id="quick"), pytest.param(range(8), id="full", marks=pytest.mark.slow)]
)
def test_large_separate_drops_of_the_flow_are_found(seeds):
    totals = np.zeros(4, dtype=int)
    for seed in seeds:
        t, loss, _, *stages = head(seed, -32)
        totals += compare(t, loss, *stages, seed)
    counted, hit, found, right = totals
    assert counted >= len(seeds)
    assert hit >= 0.9 * counted
    assert right >= 0.9 * found


def test_products_emerge_when_they_pass_the_level():
    t, _, q, *_ = head(0, -32)
    found = emergence_times(t, q, floor=1e-3)
    top = q[-50:].mean(0)
    seen = np.flatnonzero(top > 0.05)
    level = np.sqrt(1e-3 * top)
    passes = np.array([t[np.argmax(q[:, i] > level[i])] for i in seen])
    np.testing.assert_allclose(found.times[seen], passes, atol=0.04 * t[-1])  # the rise is not symmetric
