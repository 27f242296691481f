"""Loss and accuracy on the test set."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._losses import mean_loss, num_correct
from rankrise.lab.training._precision import autocast, matmul_precision
from rankrise.lab.training._processes import Processes

if TYPE_CHECKING:
    from rankrise.lab.data import Dataset


def build_evaluation(
    model: nn.Module,
    dataset: "Dataset",
    config: TrainingConfig,
    *,
    device: torch.device,
    processes: Processes,
) -> Callable[[], dict[str, Tensor]]:
    """A function that tests the model: `test_loss`, and but for regression `test_accuracy`, on the device.

    It is not compiled: that would take as long as a hundred tests.
    """
    has_accuracy = dataset.task != "regress"

    def forward(inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(config.precision, device):
            outputs = model(inputs)
            loss = mean_loss(dataset.task, outputs, targets)
        correct = num_correct(outputs, targets) if has_accuracy else torch.zeros_like(loss)
        return torch.stack([loss, correct])

    batch_size = config.batch_size // config.accumulate

    @torch.no_grad()
    def evaluate() -> dict[str, Tensor]:
        was_training = model.training
        model.eval()
        totals = torch.zeros(3, device=device, dtype=sum_dtype(device))  # loss, correct, rows or tokens
        share = {"rank": processes.rank, "world_size": processes.world_size}
        with matmul_precision(config.precision, device):
            for inputs, targets in dataset.test_batches(batch_size=batch_size, **share):
                num = len(targets) if dataset.task == "regress" else targets.numel()
                loss, correct = forward(inputs, targets)
                totals += torch.stack([loss * num, correct, torch.full_like(loss, num)])
        model.train(was_training)
        loss, correct, num_all = processes.add_up(totals)
        scores = {"test_loss": loss / num_all}
        return scores | ({"test_accuracy": correct / num_all} if has_accuracy else {})

    return evaluate


def sum_dtype(device: torch.device) -> torch.dtype:
    """Of sums over many batches; MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
