"""The size α of the start, given as a number or, since no float holds 10^-1000, by its logarithm.

Symbols:
    α               the start is α θ0
    A               log(1/α), natural: the unit of rescaled time
"""

import math

_SMALLEST = -1e9  # below it float64 cannot tell the times of two columns apart, and plateaus take longer and longer


def resolve_log10_alpha(alpha: float | None, log10_alpha: float | None) -> float:
    """Return log10 α from whichever of the two a caller gave.

    Raises:
        ValueError: If both or neither are given, or α is not between 0 and 1.

    >>> resolve_log10_alpha(1e-32, None), resolve_log10_alpha(None, -1000)
    (-32.0, -1000)
    """
    if alpha is None and log10_alpha is not None:
        return log10_alpha
    if alpha is None or log10_alpha is not None:
        raise ValueError(
            f"`alpha` or `log10_alpha` must be given, and not both; got alpha={alpha} and log10_alpha={log10_alpha}: "
            "pass alpha=1e-32, or log10_alpha=-1000 for an α that no float holds."
        )
    if not 0 < alpha < 1:
        raise ValueError(f"`alpha` must lie between 0 and 1; got {alpha}: below 1e-300 pass log10_alpha=-1000 instead.")
    return math.log10(alpha)


def log_inverse_alpha(log10_alpha: float) -> float:
    """Return A = log(1/α) from log10 α.

    >>> round(log_inverse_alpha(-1), 3)
    2.303
    """
    if not (math.isfinite(log10_alpha) and log10_alpha < 0):
        raise ValueError(
            f"`log10_alpha` must be negative and finite, as α < 1; got {log10_alpha}: pass -32 for α = 1e-32."
        )
    return -float(log10_alpha) * math.log(10.0)


def log10_alpha_of_matrices(alpha: float | None, log10_alpha: float | None) -> float:
    """Return log10 α from whichever of the two a caller gave, for columns of full matrices.

    Raises:
        ValueError: If both or neither are given, or α is not between 10^-1000000000 and 1.

    >>> log10_alpha_of_matrices(1e-32, None)
    -32.0
    """
    given = resolve_log10_alpha(alpha, log10_alpha)
    try:
        value = float(given)
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not -math.inf < value < 0:
        raise ValueError(f"`log10_alpha` must be negative and finite; got {given!r}: pass for example -32.")
    if value < _SMALLEST:
        raise ValueError(
            f"`log10_alpha` must be at least {_SMALLEST:g}; got {value:g}: use the limit, whose times differ from "
            "those at such an α by less than a part in 10^8."
        )
    return value
