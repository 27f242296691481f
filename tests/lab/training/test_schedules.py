"""Learning rates against PyTorch's own schedulers; measurements at the steps promised."""

import pytest
import torch

from rankrise.lab.training import TrainingConfig
from rankrise.lab.training._schedules import EveryAndLast, learning_rate, spectra_steps


def test_cosine_is_pytorchs():
    config = TrainingConfig(epochs=7, learning_rate=0.3)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 7 * 5)
    for step in range(7 * 5):
        assert learning_rate(config, step, steps_per_epoch=5) == pytest.approx(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()


def test_warm_up_is_linear_then_the_rate_is_at_its_highest():
    config = TrainingConfig(epochs=4, learning_rate=1.0, warmup_epochs=0.5, schedule="constant")
    rates = [learning_rate(config, step, steps_per_epoch=8) for step in range(32)]
    assert rates == [0.25, 0.5, 0.75, *[1.0] * 29]


@pytest.mark.parametrize("num", [1, 2, 3, 20, 101])
@pytest.mark.parametrize("last", [1, 7, 48_500])
def test_spectra_steps(num, last):
    steps = spectra_steps(num, last).steps
    assert last in steps
    assert min(steps) >= 0
    assert max(steps) == last
    assert len(steps) <= num + 1


def test_no_spectra():
    assert spectra_steps(0, 10).steps == frozenset()


def test_the_last_step_is_measured():
    assert [step for step in range(12) if EveryAndLast(4, 10)(step)] == [0, 4, 8, 10]
