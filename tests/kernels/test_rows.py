"""The numbers whose gradients are taken, and the exact Fisher matrix of a softmax regression."""

import pytest
import torch
from torch import nn

from rankrise.kernels import JacobianOperator


def test_fisher_rows_have_the_spectrum_of_the_exact_fisher_matrix():
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False).double().eval()
    x = torch.randn(6, 4, dtype=torch.float64)
    p = model(x).softmax(-1).detach()
    of_logits = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]  # the Fisher matrix of the logits of each sample
    exact = torch.einsum("nij,nk,nl->ikjl", of_logits, x, x).reshape(12, 12)
    expected = torch.linalg.eigvalsh(exact).flip(0)
    found = torch.linalg.eigvalsh(JacobianOperator(model, x, rows="fisher").gram()).flip(0)
    torch.testing.assert_close(found[:12], expected, atol=1e-12, rtol=1e-10)
    assert found[12:].abs().max() < 1e-12


def test_rows_over_positions_are_sums_over_the_root_of_their_number():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3).double().eval(), torch.randn(2, 5, 4, dtype=torch.float64)
    each = JacobianOperator(model, x.reshape(10, 4), rows="lse").gram().reshape(2, 5, 2, 5)
    torch.testing.assert_close(JacobianOperator(model, x, rows="lse").gram(), each.sum((1, 3)) / 5)


def test_function_must_return_a_row_for_each_sample():
    with pytest.raises(ValueError, match=r"`rows` must return \(n, R\) for 1 samples; got \(1,\)"):
        JacobianOperator(nn.Linear(4, 3).eval(), torch.zeros(2, 4), rows=lambda z: z.sum(1))
