"""Normalised bytes are (x / 255 - mean) / std to the last float32 digits, the same on every device."""

import pytest
import torch

from rankrise.lab.data import _normalise
from rankrise.lab.data._normalise import normalise

SETS = ["CIFAR10", "CIFAR100", "IMAGENET", "CENTRED"]
BYTES = torch.arange(256, dtype=torch.uint8).repeat(2, 3, 1).view(2, 3, 16, 16)


@pytest.mark.parametrize("name", SETS)
def test_equals_the_formula_in_float64(name):
    constants = getattr(_normalise, name)
    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (constants.mean, constants.std))
    expected = (BYTES.double() / 255 - mean) / std
    result = normalise(BYTES, *constants.tables("cpu"))
    assert result.dtype == torch.float32
    assert float((result - expected).abs().max()) < 1e-6


def test_digits_end_at_sixteen():
    result = normalise(torch.tensor([[[[0, 16]]]], dtype=torch.uint8), *_normalise.DIGITS.tables("cpu"))
    expected = torch.tensor([[[[-0.3053 / 0.3760, (1 - 0.3053) / 0.3760]]]])
    torch.testing.assert_close(result, expected)


@pytest.mark.gpu
def test_same_on_the_gpu():
    for name in SETS:
        constants = getattr(_normalise, name)
        on_gpu = normalise(BYTES.cuda(), *constants.tables("cuda"))
        assert torch.equal(on_gpu.cpu(), normalise(BYTES, *constants.tables("cpu")))
