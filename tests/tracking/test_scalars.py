"""Numbers come as they are; what is no number is named."""

import numpy as np
import pytest
import torch

from rankrise.tracking._recorder import PendingScalars


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5]), torch.tensor(0.5, requires_grad=True)]
)
def test_numbers(value):
    pending = PendingScalars()
    assert not pending.are_ready
    pending.add(3, {"loss": value})
    assert pending.are_ready
    assert pending.take() == [(3, "loss", 0.5)]
    assert pending.take() == []


@pytest.mark.parametrize("value", ["high", None, [1.0, 2.0], torch.ones(2)])
def test_what_is_no_number_is_named(value):
    with pytest.raises(ValueError, match=r"`loss` must be one number; got \w+\. Pass its mean"):
        PendingScalars().add(1, {"loss": value})


@pytest.mark.parametrize(
    ("scalars", "message"),
    [
        ({"n": 10**400}, "`n` must be one number; got an int too large for a float"),
        ({"\ud800": 1.0}, r"name of a number must be text that UTF-8 can hold; got '\\ud800'"),
        ({3: 1.0}, "name of a number must be text that UTF-8 can hold; got 3"),
    ],
)
def test_all_are_taken_or_none(scalars, message):
    pending = PendingScalars()
    with pytest.raises(ValueError, match=message):
        pending.add(1, {"loss": 0.5} | scalars)
    assert pending.take() == []


def test_numbers_are_written_once_a_second_or_by_two_hundred():
    now = 0.0
    pending = PendingScalars(clock=lambda: now)
    pending.add(0, {"loss": 1.0})
    assert pending.are_ready  # a slow loop waits for nothing
    pending.take()
    now = 0.9
    pending.add(1, {"loss": 1.0})
    assert not pending.are_ready
    now = 1.0
    assert pending.are_ready
    pending.take()
    for step in range(2, 202):
        assert not pending.are_ready
        pending.add(step, {"loss": 1.0})
    assert pending.are_ready
    assert len(pending.take()) == 200


@pytest.mark.gpu
def test_numbers_on_a_gpu_wait():
    pending = PendingScalars()
    for step in range(200):
        assert not pending.are_ready
        pending.add(step, {"loss": torch.tensor(float(step), device="cuda")})
    assert pending.are_ready
    assert pending.take() == [(step, "loss", float(step)) for step in range(200)]
