"""One optimiser step. This is the hot path: nothing in it waits for the device."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._losses import mean_loss, num_correct
from rankrise.lab.training._optimiser import set_rate
from rankrise.lab.training._precision import autocast, matmul_precision
from rankrise.lab.training._processes import Processes

if TYPE_CHECKING:
    from rankrise.lab.data import Batch
    from rankrise.lab.data._dataset import Task

Step = Callable[["Batch", float], Tensor]


def build_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    config: TrainingConfig,
    *,
    task: "Task",
    device: torch.device,
    processes: Processes,
    compile: bool,
) -> Step:
    """A function from (batch of this process, learning rate) to (mean loss, number correct) over all processes.

    It updates the model, and returns a float32 tensor (2,) on the device without waiting for it. The number correct is
    0 for tasks other than "classify": over a vocabulary it would cost as much as a layer.
    """
    network = processes.wrap(model, device)
    parameters = list(model.parameters())
    scale = 1 / config.accumulate

    def forward(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(config.precision, device):
            outputs = network(inputs)
            loss = mean_loss(task, outputs, targets)
        correct = num_correct(outputs.detach(), targets) if task == "classify" else torch.zeros_like(loss)
        return loss * scale, torch.stack([loss.detach() * scale, correct])

    # One graph replay instead of some 300 launches; not with gradients that add up outside of the graph.
    is_graphed = compile and device.type == "cuda" and config.accumulate == 1 and processes.world_size == 1
    mode = "reduce-overhead" if is_graphed else None
    run_forward = torch.compile(forward, mode=mode, dynamic=False) if compile else forward

    def step(batch: "Batch", rate: float) -> Tensor:
        with matmul_precision(config.precision, device):
            pieces = list(zip(*(part.chunk(config.accumulate) for part in batch), strict=True))
            total: Tensor | None = None
            for number, (inputs, targets) in enumerate(pieces):
                if is_graphed:
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                with processes.synced(network, is_last=number == len(pieces) - 1):
                    loss, metrics = run_forward(inputs, targets)
                    loss.backward()  # type: ignore[no-untyped-call]
                metrics = metrics.clone()  # the next replay writes over it
                total = metrics if total is None else total + metrics
            if config.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, config.clip_norm)
            set_rate(optimiser, rate)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        assert total is not None
        return processes.reduce_metrics(total)

    return step
