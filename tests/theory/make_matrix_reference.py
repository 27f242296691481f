"""Write data/turned_directions.json: when the last direction of 2 x 2 products joins after it has turned back; and
data/many_digits.json: the stage times of 3 x 3 sensing from a Runge-Kutta method in 84 digits, where nothing turns;
and data/decayed_directions.json: the stage times of sensing and of heads with weight decay.

    python -m tests.theory.make_matrix_reference [turned | many | decayed]

The flow dA/dt = G B, dB/dt = Gᵀ A is followed in 75 decimal digits by Cayley steps, which stay in SO(2, 2) exactly. A
Runge-Kutta method of any order and any number of digits is wrong here, because its truncation error does not stay in
the group and refills what the column has forgotten. The steps are of second order; times at h and h/2 are stored, with
the value extrapolated from them. It takes a few minutes.
"""

import json
import math
import sys
import time
from pathlib import Path

import mpmath
import numpy as np
from tests.theory.matrix.plain import PlainHead

PATH = Path(__file__).parent / "data" / "turned_directions.json"
MANY_DIGITS = Path(__file__).parent / "data" / "many_digits.json"
CASES = [(131, -12), (131, -24), (106, -12), (106, -24)]
SAMPLES, DIGITS, THRESHOLD, STEP = 6, 75, 1e-3, 0.04

SENSING = {"seed": 451, "d": 3, "log10_alpha": -32, "digits": 84}
COARSE = 0.08

DECAYED = Path(__file__).parent / "data" / "decayed_directions.json"
DECAY_CASES = [
    *(("sensing", seed, decay, -24, 1.5) for seed, decay in ((471, 0.1), (472, 0.3), (473, 0.3))),
    *(("head", seed, decay, -24, 1.5) for seed, decay in ((471, 0.05), (472, 0.2), (473, 0.2))),
]
DECAY_STEP = 0.2
DECAY_WITHIN = 1e-3  # relative error of the limit against the extrapolated times; set before the flows were run

_as_mpf = np.vectorize(mpmath.mpf, otypes=[object])


def load_reference():
    """Read the cases: seed, log10_alpha and the extrapolated time of each."""
    return json.loads(PATH.read_text())["cases"]


def load_many_digits():
    """Read the record of 3 x 3 sensing: the instance, and its stage times at two steps and extrapolated."""
    return json.loads(MANY_DIGITS.read_text())


def sensing_times(seed, d, log10_alpha, step, *, digits, num_stages):
    """Rescaled times at which singular values of Gaussian sensing first pass the threshold, by the method of order 4.

    Args:
        seed: Of the instance, as in `instances.sensing` and `instances.start`.
        d: Rows and columns of the product.
        log10_alpha: log10 α.
        step: h times the largest singular value of G at M = 0.
        digits: Decimal digits.
        num_stages: How many times to wait for.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * d * d, d, d))
    target = rng.standard_normal((d, d)) @ rng.standard_normal((d, d)).T / np.sqrt(d)
    z = np.random.default_rng(1000 + seed).standard_normal((2 * d, d))
    with mpmath.workdps(digits):
        rows = _as_mpf(x.reshape(len(x), -1))
        gram, moment = rows.T @ rows / len(x), rows.T @ _as_mpf((x * target).sum((1, 2))) / len(x)
        z = _as_mpf(z) * mpmath.mpf(10) ** log10_alpha
        h = mpmath.mpf(step / np.linalg.norm(moment.astype(float).reshape(d, d), 2))

        def slope(z):
            g = (moment - gram @ (z[:d] @ z[d:].T).reshape(-1)).reshape(d, d)
            return np.concatenate([g @ z[d:], g.T @ z[:d]])

        found, n, before = [], 0, None
        while len(found) < num_stages:
            n += 1
            k1 = slope(z)
            k2 = slope(z + h / 2 * k1)
            k3 = slope(z + h / 2 * k2)
            k4 = slope(z + h * k3)
            z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            sizes = np.linalg.svd((z[:d] @ z[d:].T).astype(float), compute_uv=False)
            while len(found) < num_stages and sizes[len(found)] > THRESHOLD:
                low, high = before[len(found)], sizes[len(found)]
                part = math.log(THRESHOLD / low) / math.log(high / low)
                found.append(float(h) * (n - 1 + part) / (-log10_alpha * math.log(10.0)))
            before = sizes
    return found


def load_decayed():
    """Read the cases with weight decay: network, seed, λ, log10 α, end, and the times at α and α², extrapolated."""
    return json.loads(DECAYED.read_text())["cases"]


def decayed_instance(network, seed):
    """Gradients of the products as a function of them, and the start [A; B] of each, in numpy alone.

    Sensing is 3 x 3 with Gaussian measurements; heads have d = 2, 24 samples of 4 tokens and a full teacher.
    """
    rng, d = np.random.default_rng(seed), 3 if network == "sensing" else 2
    first = np.random.default_rng(1000 + seed)
    if network == "sensing":
        x = rng.standard_normal((4 * d * d, d, d))
        target = rng.standard_normal((d, d)) @ rng.standard_normal((d, d)).T / np.sqrt(d)
        y = (x * target).sum((1, 2))
        starts = [first.standard_normal((2 * d, d))]
        return lambda m: [((y - (x * m).sum((1, 2)))[:, None, None] * x).mean(0)], starts
    x = rng.standard_normal((24, 4, d))
    w_k, w_q, w_v, w_o = rng.standard_normal((4, d, d)) / d**0.25
    scores = x @ (w_k @ w_q.T) @ x.swapaxes(1, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = weights / weights.sum(-1, keepdims=True) @ x @ (w_v @ w_o.T)
    return PlainHead(x, y).gradients, [first.standard_normal((2 * d, d)) for _ in range(2)]


def decayed_times(network, seed, weight_decay, log10_alpha, end):
    """Rescaled times, matrices and ranks at which singular values first pass the threshold, until a rescaled time.

    dZ/dt = (H - λ) Z by the method of order 4. Columns have many digits; gradients need only those of float64, because
    a column that waits loses its digits to rounding in longer columns, and not to rounding in H.
    """
    gradients, starts = decayed_instance(network, seed)
    d = len(starts[0]) // 2
    slowest = max(np.linalg.norm(g, 2) for g in gradients(*(np.zeros((d, d)) for _ in starts)))
    clock = -log10_alpha * math.log(10.0)
    with mpmath.workdps(20 - 2 * log10_alpha):
        z, decay = [_as_mpf(s) * mpmath.mpf(10) ** log10_alpha for s in starts], mpmath.mpf(weight_decay)

        def products(z):
            return [(s[:d] @ s[d:].T).astype(float) for s in z]

        def slope(z):
            moved = []
            for s, g in zip(z, map(_as_mpf, gradients(*products(z))), strict=True):
                moved.append(np.concatenate([g @ s[d:], g.T @ s[:d]]) - decay * s)
            return moved

        def ahead(z, k, part):
            return [s + part * moved for s, moved in zip(z, k, strict=True)]

        found, before, t = [], [np.zeros(d) for _ in starts], 0.0
        while t < end * clock:
            # A head that attends has far larger gradients than one at products of zero: the step follows them.
            h = DECAY_STEP / max(slowest, *(np.linalg.norm(g, 2) for g in gradients(*products(z))))
            t, h = t + h, mpmath.mpf(h)
            k1 = slope(z)
            k2 = slope(ahead(z, k1, h / 2))
            k3 = slope(ahead(z, k2, h / 2))
            k4 = slope(ahead(z, k3, h))
            z = [s + h / 6 * (a + 2 * b + 2 * c + e) for s, a, b, c, e in zip(z, k1, k2, k3, k4, strict=True)]
            sizes = [np.linalg.svd(m, compute_uv=False) for m in products(z)]
            for j, (low, high) in enumerate(zip(before, sizes, strict=True)):
                known = {rank for _, matrix, rank in found if matrix == j}
                for rank in [r for r in range(d) if high[r] > THRESHOLD and r not in known]:
                    part = math.log(THRESHOLD / low[rank]) / math.log(high[rank] / low[rank])
                    found.append(((t - float(h) * (1 - part)) / clock, j, rank))
            before = sizes
    return sorted(found)


def write_decayed():
    """Times at α and α², and what follows from them for times that are T + c / log(1/α)."""
    began, cases = time.process_time(), []
    for network, seed, weight_decay, log10_alpha, end in DECAY_CASES:
        far, near = (decayed_times(network, seed, weight_decay, part * log10_alpha, end) for part in (1, 2))
        stages = [
            {"matrix": j, "rank": rank, "far": t, "near": near_t, "time": 2 * near_t - t}
            for t, j, rank in far
            for near_t, *key in near
            if key == [j, rank]
        ]
        case = {"network": network, "seed": seed, "weight_decay": weight_decay, "log10_alpha": log10_alpha}
        cases.append({**case, "end": end, "stages": stages})
    record = {
        "what": "rescaled times at which singular values pass the threshold in a flow with weight decay",
        "command": "python -m tests.theory.make_matrix_reference decayed",
        "settings": {"step": DECAY_STEP, "threshold": THRESHOLD},
        "processor_seconds": time.process_time() - began,
        "cases": cases,
    }
    DECAYED.write_text(json.dumps(record, indent=1) + "\n")


def joining_time(seed, log10_alpha, step):
    """Rescaled time at which the second singular value of M passes the threshold.

    Args:
        seed: Of the instance: few, stretched measurements with random targets.
        log10_alpha: log10 α.
        step: h times the largest singular value of G at M = 0.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((SAMPLES, 2, 2)) @ (np.eye(2) + 1.5 * rng.standard_normal((2, 2)))
    y = 3 * rng.standard_normal(SAMPLES)
    z = np.random.default_rng(1000 + seed).standard_normal((4, 2))
    with mpmath.workdps(DIGITS):
        rows = _as_mpf(x.reshape(SAMPLES, 4))
        gram, moment = rows.T @ rows / SAMPLES, rows.T @ _as_mpf(y) / SAMPLES

        def gradient(a, b):
            return (moment - gram @ (a @ b.T).reshape(4)).reshape(2, 2)

        alpha = mpmath.mpf(10) ** log10_alpha
        a, b = _as_mpf(z[:2]) * alpha, _as_mpf(z[2:]) * alpha
        largest = np.linalg.norm(moment.astype(float).reshape(2, 2), 2)
        h, t, before = mpmath.mpf(step) / mpmath.mpf(float(largest)), mpmath.mpf(0), None
        while True:
            middle = _cayley(a, b, gradient(a, b), h / 2)
            a, b = _cayley(a, b, gradient(*middle), h)
            t += h
            size = np.linalg.svd((a @ b.T).astype(float), compute_uv=False)[1]
            if size > THRESHOLD:
                part = np.log(THRESHOLD / before) / np.log(size / before)
                return float((t - h + h * mpmath.mpf(float(part))) / (-mpmath.log(alpha)))
            before = size


def _cayley(a, b, g, h):
    """(I - K/2)⁻¹ (I + K/2) Z with K = h [[0, G], [Gᵀ, 0]], for Z = [A; B]."""
    x = h * g / 2
    m = -(x @ x.T)
    m[0, 0], m[1, 1] = 1 + m[0, 0], 1 + m[1, 1]
    inverse = np.array([[m[1, 1], -m[0, 1]], [-m[1, 0], m[0, 0]]]) / (m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0])
    new = inverse @ (a + x @ b + x @ (b + x.T @ a))
    return new, b + x.T @ a + x.T @ new


def write_many_digits():
    """Times at two steps, and what follows from them for a method of order 4."""
    begun = time.process_time()
    coarse, fine = (sensing_times(**SENSING, step=step, num_stages=3) for step in (COARSE, COARSE / 2))
    record = {
        "what": "rescaled times at which the singular values of a 3 x 3 product pass the threshold",
        "command": "python -m tests.theory.make_matrix_reference",
        "settings": {**SENSING, "threshold": THRESHOLD, "step": COARSE},
        "processor_seconds": time.process_time() - begun,
        "coarse": coarse,
        "fine": fine,
        "times": [b + (b - a) / 15 for a, b in zip(coarse, fine, strict=True)],
    }
    MANY_DIGITS.write_text(json.dumps(record, indent=1) + "\n")


def write_turned():
    """Times of directions that turned back, at two steps and extrapolated."""
    cases = []
    for seed, log10_alpha in CASES:
        coarse, fine = (joining_time(seed, log10_alpha, step) for step in (STEP, STEP / 2))
        extrapolated = fine + (fine - coarse) / 3
        cases.append({"seed": seed, "log10_alpha": log10_alpha, "coarse": coarse, "fine": fine, "time": extrapolated})
    record = {
        "what": "rescaled time at which the second singular value of a 2 x 2 product passes the threshold",
        "command": "python -m tests.theory.make_matrix_reference turned",
        "settings": {"digits": DIGITS, "threshold": THRESHOLD, "step": STEP, "samples": SAMPLES},
        "cases": cases,
    }
    PATH.write_text(json.dumps(record, indent=1) + "\n")


WRITERS = {"turned": write_turned, "many": write_many_digits, "decayed": write_decayed}


def main():
    for name in sys.argv[1:] or WRITERS:
        WRITERS[name]()


if __name__ == "__main__":
    main()
