"""α as a number or by its logarithm: what is taken, and what is refused in a sentence."""

import numpy as np
import pytest
import torch

from rankrise.theory._alpha import log10_alpha_of_matrices, log_inverse_alpha, resolve_log10_alpha


@pytest.mark.parametrize("value", [-32, -32.0, np.float32(-32), torch.tensor(-32.0)])
def test_any_number_is_taken_as_a_float(value):
    taken = log10_alpha_of_matrices(None, value)
    assert (taken, type(taken)) == (-32.0, float)


def test_alpha_itself_is_taken():
    assert resolve_log10_alpha(1e-8, None) == pytest.approx(-8)
    assert log_inverse_alpha(resolve_log10_alpha(np.exp(-3.0), None)) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("alpha", "log10_alpha", "message"),
    [
        (None, None, "`alpha` or `log10_alpha` must be given, and not both"),
        (1e-8, -8.0, "`alpha` or `log10_alpha` must be given, and not both"),
        (0.0, None, "`alpha` must lie between 0 and 1; got 0.0"),
        (1.5, None, r"`alpha` must lie between 0 and 1; got 1\.5"),
        (None, 8.0, r"`log10_alpha` must be negative and finite; got 8\.0: pass for example -32"),
        (None, "thirty", "`log10_alpha` must be negative and finite; got 'thirty'"),
        (None, float("nan"), "`log10_alpha` must be negative and finite; got nan"),
        (None, -1e12, r"`log10_alpha` must be at least -1e\+09; got -1e\+12: use the limit"),
    ],
)
def test_what_is_no_alpha_is_refused(alpha, log10_alpha, message):
    with pytest.raises(ValueError, match=message):
        log10_alpha_of_matrices(alpha, log10_alpha)
