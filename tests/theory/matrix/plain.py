"""Algorithm 1 for matrices a second time: dense, explicit, from its definition, with nothing of the package.

Symbols:
    Z_a         active columns [A; B] of each matrix; H = [[0, G], [Gᵀ, 0]]; dZ/dt = H Z
    s           exponents of the directions that wait; the i-th largest grows with the i-th singular value of G⊥
    Φ           propagator of columns that wait, dΦ/dt = H Φ, in pieces; products of pieces are formed in many digits
"""

import mpmath
import numpy as np
from scipy.integrate import solve_ivp

EPSILON = 1e-3


class PlainHead:
    """softmax(X A Xᵀ) X B under mean squared error."""

    def __init__(self, x, y):
        self.x, self.y, d = x, y, x.shape[2]
        self.shapes = [(d, d), (d, d)]

    def gradients(self, a, b):
        scores = self.x @ a @ self.x.swapaxes(1, 2)
        s = np.exp(scores - scores.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        m = s @ self.x
        r = self.y - m @ b
        e = r @ b.T @ self.x.swapaxes(1, 2)
        p = s * (e - (s * e).sum(-1, keepdims=True))
        n = len(self.x)
        return [np.einsum("nia,nij,njb->ab", self.x, p, self.x) / n, np.einsum("nia,nib->ab", m, r) / n]


def swapped(g):
    return np.block([[np.zeros((len(g), len(g))), g], [g.T, np.zeros((g.shape[1],) * 2)]])


def bases(z, d):
    """Projections off the ranges of A and B."""
    projections = []
    for part in (z[:d], z[d:]):
        q = np.linalg.svd(part, full_matrices=False)[0] if z.shape[1] else np.zeros((len(part), 0))
        projections.append(np.eye(len(part)) - q @ q.T)
    return projections


class PlainStages:
    """The limit, with what the form at finite α needs."""

    def __init__(self, net, *, num_stages):
        self.net = net
        z = [np.zeros((sum(shape), 0)) for shape in net.shapes]
        s = [np.zeros(min(shape)) for shape in net.shapes]
        t, self.times, self.matrices, self.records = 0.0, [], [], []
        for _ in range(num_stages):
            g = self.gradients(z)
            outside = []
            for zj, gj, (d, _) in zip(z, g, net.shapes, strict=True):
                left, right = bases(zj, d)
                u, sigma, vt = np.linalg.svd(left @ gj @ right)
                outside.append((left @ gj @ right, u, sigma[: min(gj.shape) - zj.shape[1]], vt))
            signs = [
                np.sign(np.linalg.det(zj[:d] @ zj[d:].T + o[0]))
                for zj, o, (d, _) in zip(z, outside, net.shapes, strict=True)
            ]
            waits = [np.inf] * len(z)
            for j, (_, _, sigma, _) in enumerate(outside):
                if len(sigma) and sigma[0] > 1e-9:
                    first = signs[j] * s[j][0] if len(sigma) == 1 else s[j][0]
                    waits[j] = (1 - first) / sigma[0]
            j = int(np.argmin(waits))
            t += waits[j]
            for i, (_, _, sigma, _) in enumerate(outside):
                if len(sigma):
                    s[i] = s[i] + np.append(sigma[:-1], signs[i] * sigma[-1]) * waits[j]
            s[j] = s[j][1:]
            _, u, sigma, vt = outside[j]
            column = EPSILON * np.concatenate([u[:, 0], vt[0]]) / np.sqrt(2)
            rank = z[j].shape[1]
            z[j] = np.column_stack([z[j], column])
            plateau = [o[0] for o in outside]
            z, pieces, crossing = self.transition(z, j, rank)
            self.times.append(t)
            self.matrices.append(j)
            self.records.append((j, sigma[0], plateau, pieces, crossing))

    def gradients(self, z):
        return self.net.gradients(*(zj[:d] @ zj[d:].T for zj, (d, _) in zip(z, self.net.shapes, strict=True)))

    def transition(self, z, j, rank, threshold=1e-3):
        """Phase B by an explicit method, in pieces of one unit of 2/|G|, to rest, then Newton by least squares."""
        shapes = [zj.shape for zj in z]
        sizes = [zj.size for zj in z]
        dims = [sum(shape) for shape in self.net.shapes]

        def unpack(v):
            parts = np.split(v, np.cumsum([*sizes, *(n * n for n in dims)])[:-1])
            return [p.reshape(s) for p, s in zip(parts, [*shapes, *((n, n) for n in dims)], strict=True)]

        def slope(_, v):
            parts = unpack(v)
            h = [swapped(g) for g in self.gradients(parts[: len(z)])]
            return np.concatenate([(hj @ p).ravel() for hj, p in zip(h * 2, parts, strict=True)])

        def value(v):
            zj = unpack(v)[j]
            d = self.net.shapes[j][0]
            return np.linalg.svd(zj[:d] @ zj[d:].T, compute_uv=False)[rank] - threshold

        t, pieces, crossing = 0.0, [], np.inf
        for _ in range(100_000):
            g = self.gradients(z)
            if max(np.abs(swapped(gj) @ zj).max(initial=0) for gj, zj in zip(g, z, strict=True)) < 1e-7:
                break
            length = 2 / max(np.linalg.norm(gj, 2) for gj in g)
            start = np.concatenate([*(zj.ravel() for zj in z), *(np.eye(n).ravel() for n in dims)])
            run = solve_ivp(slope, (0, length), start, method="DOP853", rtol=1e-10, atol=1e-13, dense_output=True)
            if np.isinf(crossing) and value(run.y[:, -1]) > 0:
                low, high = 0.0, length
                for _ in range(50):
                    middle = (low + high) / 2
                    low, high = (low, middle) if value(run.sol(middle)) > 0 else (middle, high)
                crossing = t + high
            parts = unpack(run.y[:, -1])
            z = parts[: len(z)]
            projections = [bases(zj, d) for zj, (d, _) in zip(z, self.net.shapes, strict=True)]
            pieces.append((length, parts[len(z) :], projections))
            t += length
        return self.newton(z), pieces, crossing

    def newton(self, z):
        sizes, shapes = [zj.size for zj in z], [zj.shape for zj in z]

        def residual(v):
            parts = [p.reshape(s) for p, s in zip(np.split(v, np.cumsum(sizes)[:-1]), shapes, strict=True)]
            return np.concatenate([(swapped(g) @ p).ravel() for g, p in zip(self.gradients(parts), parts, strict=True)])

        v = np.concatenate([zj.ravel() for zj in z])
        for _ in range(4):
            eye = 1e-6 * np.eye(len(v))
            jacobian = np.array([(residual(v + e) - residual(v - e)) / 2e-6 for e in eye]).T
            v = v - np.linalg.lstsq(jacobian, residual(v), rcond=1e-7)[0]
        return [p.reshape(s) for p, s in zip(np.split(v, np.cumsum(sizes)[:-1]), shapes, strict=True)]

    def predict(self, starts, *, log10_alpha, digits):
        """Carry α Z0 through plateaus and pieces in `digits` decimal digits: no graded form is needed."""
        with mpmath.workdps(digits):
            clock = -log10_alpha * mpmath.log(10)
            z = [mpmath.matrix(s.tolist()) * mpmath.mpf(10) ** log10_alpha for s in starts]
            t, times = mpmath.mpf(0), []
            following = [record[0] for record in self.records[1:]]
            for k, (j, sigma, plateau, pieces, crossing) in enumerate(self.records):
                maps = [_Exponential(g) for g in plateau]

                def height(dt, j=j, z=z, maps=maps):
                    return mpmath.log(_longest(maps[j].at(dt) * z[j])[0])

                dt = (mpmath.log(EPSILON) - height(0)) / sigma
                for _ in range(60):
                    missing = mpmath.log(EPSILON) - height(dt)
                    if abs(missing) < 1e-12:
                        break
                    dt += missing / sigma
                z = [m.at(dt) * zj for m, zj in zip(maps, z, strict=True)]
                t += dt
                times.append((t + crossing) / clock)
                row = _longest(z[j])[1]
                z[j] = z[j] - (z[j] * row) * row.T
                for length, propagators, projections in pieces:
                    for i, (phi, (left, right)) in enumerate(zip(propagators, projections, strict=True)):
                        off = np.block([[left, np.zeros((len(left), len(right)))],
                                        [np.zeros((len(right), len(left))), right]])  # fmt: skip
                        z[i] = mpmath.matrix((off @ phi).tolist()) * z[i]
                    t += length
                    if k < len(following) and _longest(z[following[k]])[0] > EPSILON:
                        break  # the next direction is ready before this transition has come to rest
            return [float(time) for time in times]


class _Exponential:
    """exp(H t) for H = [[0, G], [Gᵀ, 0]]."""

    def __init__(self, g):
        u, s, vt = np.linalg.svd(g)
        frame = np.block([[u, u], [vt.T, -vt.T]]) / np.sqrt(2)
        self.frame, self.rates = mpmath.matrix(frame.tolist()), [*s, *-s]

    def at(self, t):
        return self.frame * mpmath.diag([mpmath.exp(rate * t) for rate in self.rates]) * self.frame.T


def _longest(z):
    """The largest singular value of Z and its right singular vector."""
    values, vectors = mpmath.eigsy(z.T * z)
    n = max(range(len(values)), key=lambda i: values[i])
    return mpmath.sqrt(values[n]), vectors[:, n]
