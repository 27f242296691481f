"""Slingshots: late spikes of the training loss at the end of a quick growth of the last layer's norm.

Once a network has fitted its data, an adaptive optimiser may enter a cycle: the norm of the last layer grows quickly,
the loss spikes, and the norm stays where it is. The definition in `detect_slingshots` is our own, and asks for all
parts of the cycle.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rankrise.signals._analysis import check_curve, check_fraction
from rankrise.signals._trend import Array

_FEWEST = 3  # fewest samples from the trough to the peak
_NOISES = 6.0  # a spike must rise at least so many times the noise of the curve


@dataclass(frozen=True)
class Slingshot:
    """One cycle: the norm grows from `trough` to `peak`, where the loss spikes.

    Attributes:
        trough: Step of the lowest loss since the spike before.
        peak: Step of the spike.
        loss_from: The loss at the trough.
        loss_to: The loss at the spike.
        norm_from: The norm at the trough.
        norm_to: The norm at the spike.
        is_open: Whether the record ends too early to show that the norm stays.
    """

    trough: float
    peak: float
    loss_from: float
    loss_to: float
    norm_from: float
    norm_to: float
    is_open: bool = False


@dataclass(frozen=True)
class Slingshots:
    """The slingshots of a run in order of time; the last one may be open, and `closed` leaves it out."""

    found: tuple[Slingshot, ...]

    @property
    def closed(self) -> tuple[Slingshot, ...]:
        """The slingshots after which the record shows that the norm stays."""
        return tuple(one for one in self.found if not one.is_open)

    @property
    def period(self) -> float:
        """The median number of steps between spikes; NaN for fewer than two slingshots."""
        peaks = [one.peak for one in self.closed]
        return float(np.median(np.diff(peaks))) if len(peaks) > 1 else float("nan")

    @property
    def is_cyclic(self) -> bool:
        """Whether there are two or more slingshots."""
        return len(self.closed) > 1


def detect_slingshots(
    steps: ArrayLike,
    loss: ArrayLike,
    norm: ArrayLike,
    *,
    fitted: float = 0.01,
    decades: float = 1.0,
    ratio: float = 3.0,
    least: float = 1e-3,
    steady: float = 0.8,
) -> Slingshots:
    """Find slingshots: spikes of the loss after a quick growth of a norm that stops at the spike.

    A slingshot is a peak of log₁₀ loss for which all of this holds:

    1. Before it the loss has been at most `fitted` times its first value.
    2. It rises at least `decades`, and at least six times the noise of the curve, above the lowest loss since the
       spike before, and falls as much again.
    3. With h the steps from that trough to the peak, three samples or more, the norm grows in [peak − h, peak] at least
       `ratio` times as much as in [peak, peak + h] and by at least `least` of itself, and it rises in at least the
       share `steady` of the samples. If the record ends before peak + h, the growth up to its end is scaled up.
    4. At least h / 2 steps follow; with fewer, the slingshot is called open.

    Every cycle needs ten samples or more. Take the loss of all training data, or its mean over an epoch, and never the
    loss of single batches. The noise of the curve is the standard deviation of white noise, estimated from the median
    size of the second differences of log₁₀ loss.

    Args:
        steps: Steps, strictly increasing (n,), n ≥ 20.
        loss: The training loss, positive (n,); 0 is taken as the smallest positive loss.
        norm: The norm of the last layer (n,).
        fitted: Share of the first loss below which the data count as fitted.
        decades: Least height of a spike.
        ratio: How many times more the norm must grow before the spike than after it.
        least: Least growth of the norm, as a share of the norm.
        steady: Least share of the samples before the spike in which the norm rises.

    Raises:
        ValueError: Shapes differ, there are fewer than 20 samples, a value is not finite, the loss is negative or 0
            throughout, or an option is out of its range.

    >>> import numpy as np
    >>> steps = np.arange(0, 5000, 20.0)
    >>> cycle, phase = steps // 1000, steps % 1000 / 1000  # a cycle begins with its spike
    >>> high = np.where(cycle == 0, 0, -3)
    >>> loss = 10.0 ** (high - (7 + high) * (1 - np.exp(-phase / 0.2)) + 0.2 * phase**4)
    >>> norm = 10 + cycle + np.exp((phase - 1) / 0.1)
    >>> found = detect_slingshots(steps, loss, norm)
    >>> [one.peak for one in found.found], found.period
    ([1000.0, 2000.0, 3000.0, 4000.0], 1000.0)
    """
    t, y = check_curve(steps, loss, name="loss", ndim=1)
    _, w = check_curve(steps, norm, name="norm", ndim=1)
    check_fraction("steady", steady)
    for name, value in (("fitted", fitted), ("decades", decades), ("ratio", ratio), ("least", least)):
        if not value > 0:
            raise ValueError(f"`{name}` must be positive; got {value}.")
    if y.min() < 0 or not y.any():
        raise ValueError(f"`loss` must be positive; its smallest value is {y.min():g} and its largest {y.max():g}.")
    log_loss = np.log10(np.maximum(y, y[y > 0].min()))
    noise = 1.4826 / np.sqrt(6) * float(np.median(np.abs(np.diff(log_loss, n=2))))
    decades = max(decades, _NOISES * noise)
    from scipy.signal import find_peaks  # this import takes seconds, which nothing else in this file needs

    peaks, _ = find_peaks(log_loss)
    found: list[Slingshot] = []
    start = 0  # index from which on the next trough may lie
    for peak in peaks:
        if peak <= start:
            continue
        trough = start + int(np.argmin(log_loss[start:peak]))
        if log_loss[trough] > log_loss[0] + np.log10(fitted):
            continue
        if not _is_spike(log_loss, trough, int(peak), decades):
            continue
        start = int(peak)
        is_open = _is_open(t, w, trough, int(peak), ratio=ratio, least=least, steady=steady)
        if is_open is None:
            continue
        found.append(
            Slingshot(
                trough=float(t[trough]),
                peak=float(t[peak]),
                loss_from=float(y[trough]),
                loss_to=float(y[peak]),
                norm_from=float(w[trough]),
                norm_to=float(w[peak]),
                is_open=is_open,
            )
        )
    return Slingshots(tuple(found))


def _is_spike(log_loss: Array, trough: int, peak: int, decades: float) -> bool:
    """Whether the peak stands `decades` above the trough and is the highest point until the loss has fallen as much."""
    height = log_loss[peak]
    if height < log_loss[trough] + decades or height < log_loss[trough : peak + 1].max():
        return False
    after = log_loss[peak:]
    fallen = np.flatnonzero(after <= height - decades)
    return bool(len(fallen)) and bool(after[: fallen[0]].max() <= height)


def _is_open(
    t: Array, norm: Array, trough: int, peak: int, *, ratio: float, least: float, steady: float
) -> bool | None:
    """Return False if the norm ran up to the peak and stayed, True if the record is too short to tell, else None."""
    if peak - trough < _FEWEST:
        return None
    h = t[peak] - t[trough]
    before = norm[peak] - norm[trough]
    if before < least * norm[peak] or np.mean(np.diff(norm[trough : peak + 1]) > 0) < steady:
        return None
    seen = min(h, t[-1] - t[peak])
    after = (np.interp(t[peak] + seen, t, norm) - norm[peak]) * h / seen
    return bool(seen < h / 2) if before >= ratio * after else None
