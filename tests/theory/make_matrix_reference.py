"""Write data/turned_directions.json: when the last direction of 2 x 2 products joins after it has turned back; and
data/many_digits.json: the stage times of 3 x 3 sensing from a Runge-Kutta method in 84 digits, where nothing turns.

    python -m tests.theory.make_matrix_reference

The flow dA/dt = G B, dB/dt = Gᵀ A is followed in 75 decimal digits by Cayley steps, which stay in SO(2, 2) exactly. A
Runge-Kutta method of any order and any number of digits is wrong here, because its truncation error does not stay in
the group and refills what the column has forgotten. The steps are of second order; times at h and h/2 are stored, with
the value extrapolated from them. It takes a few minutes.
"""

import json
import math
import time
from pathlib import Path

import mpmath
import numpy as np

PATH = Path(__file__).parent / "data" / "turned_directions.json"
MANY_DIGITS = Path(__file__).parent / "data" / "many_digits.json"
CASES = [(131, -12), (131, -24), (106, -12), (106, -24)]
SAMPLES, DIGITS, THRESHOLD, STEP = 6, 75, 1e-3, 0.04

SENSING = {"seed": 451, "d": 3, "log10_alpha": -32, "digits": 84}
COARSE = 0.08

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


def main():
    write_many_digits()
    cases = []
    for seed, log10_alpha in CASES:
        coarse, fine = (joining_time(seed, log10_alpha, step) for step in (STEP, STEP / 2))
        extrapolated = fine + (fine - coarse) / 3
        cases.append({"seed": seed, "log10_alpha": log10_alpha, "coarse": coarse, "fine": fine, "time": extrapolated})
    record = {
        "what": "rescaled time at which the second singular value of a 2 x 2 product passes the threshold",
        "command": "python -m tests.theory.make_matrix_reference",
        "settings": {"digits": DIGITS, "threshold": THRESHOLD, "step": STEP, "samples": SAMPLES},
        "cases": cases,
    }
    PATH.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
