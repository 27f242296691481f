"""The value of PyTorch's cross-entropy, with a gradient that sums to zero; and the slingshots that it removes."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.gauges.modular import train

import rankrise as rr
from rankrise.signals import detect_slingshots

OPTIONS = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.2},
    {"ignore_index": 2},
    {"ignore_index": 2, "label_smoothing": 0.1, "reduction": "none"},
]


@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4), (2, 5, 3, 2)])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_value_and_gradient_are_those_of_torch(options, shape):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 5, shape[:1] + shape[2:], generator=generator)
    targets.view(-1)[0] = 2
    mine, theirs = rr.zero_sum_cross_entropy(logits, targets, **options), F.cross_entropy(logits, targets, **options)
    torch.testing.assert_close(mine, theirs)
    weights = torch.rand(mine.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad((loss * weights).sum(), logits)[0] for loss in (mine, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_gradient_sums_to_zero_where_the_softmax_rounds_to_one(dtype):
    logits = (torch.randn(6, 10, generator=torch.Generator().manual_seed(0)) / 4).to(dtype)
    logits[:, 3] = 4 - math.log(torch.finfo(dtype).eps)
    logits.requires_grad_()
    targets = torch.full((6,), 3)
    theirs, mine = (
        torch.autograd.grad(loss(logits, targets, reduction="sum"), logits)[0].double()
        for loss in (F.cross_entropy, rr.zero_sum_cross_entropy)
    )
    assert (theirs[:, 3] == 0).any()
    assert (mine[:, 3] < 0).all()
    assert (mine.sum(-1).abs() <= 4 * torch.finfo(dtype).eps * mine.abs().sum(-1)).all()


def test_nothing_to_count_is_nan_as_in_torch():
    logits, targets = torch.zeros(2, 3), torch.full((2,), -100)
    assert rr.zero_sum_cross_entropy(logits, targets).isnan()
    assert F.cross_entropy(logits, targets).isnan()


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (torch.zeros(3, dtype=torch.long), {}, r"\(2,\); got \(3,\)"),
        (torch.zeros(2, dtype=torch.long), {"reduction": "max"}, "`reduction` must be mean, sum or none; got 'max'"),
        (torch.zeros(2, dtype=torch.long), {"label_smoothing": 2}, "from 0 to 1; got 2"),
    ],
)
def test_refusals(targets, options, message):
    with pytest.raises(ValueError, match=message):
        rr.zero_sum_cross_entropy(torch.zeros(2, 3), targets, **options)


@pytest.mark.slow
def test_slingshots_of_modular_addition_and_their_cure():
    """5,000 steps of Adam; the norm keeps growing in both, but only one of them spikes."""
    found = {}
    for loss in (F.cross_entropy, rr.zero_sum_cross_entropy):
        steps, losses, norms = train(loss, num_steps=5000)
        for every in (1, 2, 5):  # logged every 20, 40 and 100 steps
            found[loss, every] = detect_slingshots(steps[::every], losses[::every], norms[::every]).closed
    counts = [len(found[F.cross_entropy, every]) for every in (1, 2, 5)]
    assert min(counts) == max(counts) >= 2
    assert not any(found[rr.zero_sum_cross_entropy, every] for every in (1, 2, 5))
    peaks = [[one.peak for one in found[F.cross_entropy, every]] for every in (1, 2, 5)]
    np.testing.assert_allclose(peaks[0], peaks[2], atol=100)
