"""Refuse what is not a curve, before any work."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Two plateaus and a drop between them, three samples each, and as many again to tell them from noise.
FEWEST = 20


def curve(steps: ArrayLike, values: ArrayLike, *, name: str, ndim: int) -> tuple[Array, Array]:
    """`steps` (n,) and `values` (n,) or (n, k) in float64.

    Raises:
        ValueError: Naming the argument, the rule and what was got.
    """
    t, y = _real("steps", steps), _real(name, values)
    if t.ndim != 1:
        raise ValueError(f"`steps` must have shape (n,); got {t.shape}.")
    if y.ndim != ndim or len(y) != len(t):
        rule = "(n,)" if ndim == 1 else "(n, k)"
        raise ValueError(f"`{name}` must have shape {rule} with n = {len(t)} as `steps`; got {y.shape}.")
    if len(t) < FEWEST:
        raise ValueError(f"`steps` must hold at least {FEWEST} samples to show a stage; got {len(t)}.")
    for argument, array in (("steps", t), (name, y)):
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            index = tuple(int(i) for i in bad[0])
            raise ValueError(f"`{argument}` must be finite; the value at {index} is {array[index]}: drop that sample.")
    late = np.flatnonzero(np.diff(t) <= 0)
    if len(late):
        i = int(late[0])
        raise ValueError(f"`steps` must increase strictly; step {t[i + 1]:g} comes after {t[i]:g} at index {i + 1}.")
    return t, y


def _real(name: str, values: ArrayLike) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be an array of real numbers; got {type(values).__name__}.") from error


def fraction(name: str, value: float) -> None:
    """Refuse what is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be in [0, 1]; got {value}.")
