"""A driver that does not converge is answered by another one, with a warning."""

import pytest
import torch

import rankrise as rr
from rankrise.linalg import _decompose


@pytest.mark.parametrize(
    ("failing", "call"),
    [
        ("eigvalsh", lambda m: (_decompose.symmetric_eigenvalues(m @ m.mT),)),
        ("eigh", lambda m: _decompose.symmetric_eigen(m @ m.mT)),
        ("svdvals", lambda m: (_decompose.singular_values(m),)),
        ("svd", _decompose.thin_svd),
    ],
)
def test_second_method_gives_the_same_answer_and_says_so(monkeypatch, failing, call):
    matrix = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = call(matrix)

    def fail(*args, **kwargs):
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, failing, fail)
    with pytest.warns(RuntimeWarning, match=f"torch.linalg.{failing} did not converge; used LAPACK"):
        answer = call(matrix)
    for got, want in zip(answer, expected, strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got.abs(), want.abs())  # vectors are defined up to sign


def test_spectrum_survives_a_failing_driver(monkeypatch):
    change = [torch.randn(9, 3, generator=torch.Generator().manual_seed(s)) for s in range(4)]
    expected = rr.delta_spectrum(*change)

    def fail(matrix):
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigvalsh", fail)
    with pytest.warns(RuntimeWarning, match="used LAPACK syev instead"):
        torch.testing.assert_close(rr.delta_spectrum(*change), expected)
