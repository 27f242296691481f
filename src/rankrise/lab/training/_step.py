"""What a recipe means for one step: loss, number format, optimiser, learning rate, update, test, and reading back.

The update is the hot path: nothing in it waits for the device.

classify     cross-entropy of the logits (B, classes), mean over samples
next_token   cross-entropy of the logits (B, T, vocabulary), mean over tokens
regress      ½‖f(x) − y‖² per sample, mean over samples, as in `rankrise.theory`
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rankrise.lab.training._config import Precision, TrainingConfig
from rankrise.lab.training._processes import Processes
from rankrise.tracking import At, Every, at

if TYPE_CHECKING:
    from rankrise.lab.data import Batch, Dataset, Task

Step = Callable[["Batch", float], Tensor]
_WINDOW = 50  # steps between two readings of the losses from a GPU; 1 on the CPU


def mean_loss(task: "Task", outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a batch, in float32.

    >>> mean_loss("regress", torch.ones(4, 3, 2), torch.zeros(4, 3, 2))
    tensor(3.)
    """
    if task == "regress":
        return 0.5 * (outputs.float() - targets).square().flatten(1).sum(1).mean()
    return cross_entropy(outputs.flatten(0, -2).float(), targets.flatten())


def num_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Count the targets whose logit is the largest, in float32.

    >>> num_correct(torch.eye(3), torch.tensor([0, 1, 0]))
    tensor(2.)
    """
    return (outputs.argmax(-1) == targets).sum(dtype=torch.float32)


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Return the region in which the forward pass runs."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


@contextlib.contextmanager
def matmul_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Allow TF32 on a GPU, or forbid it, and put PyTorch's switches back at the end; does nothing on the CPU."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def build_optimiser(model: nn.Module, config: TrainingConfig, device: torch.device) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD over all parameters; fused, with the rate as a tensor, on a GPU."""
    is_cuda = device.type == "cuda"
    rate = torch.tensor(config.learning_rate, device=device) if is_cuda else config.learning_rate
    options: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay, "fused": is_cuda or None}
    if config.optimiser == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=config.momentum, **options)
    kind = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
    return kind(model.parameters(), betas=config.betas, **options)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the next update; on a GPU this does not wait for the device."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimiser_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the state of an optimiser by kind and name, `exp_avg/blocks.0.attn.qkv.weight`; nothing is copied."""
    return {
        f"{kind}/{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back a state that `optimiser_tensors` returned.

    Raises:
        ValueError: A tensor belongs to no parameter.
    """
    positions = {name: position for position, (name, _) in enumerate(model.named_parameters())}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if name not in positions:
            raise ValueError(f"{key!r} must belong to a parameter of the model; it has none of that name.")
        state.setdefault(positions[name], {})[kind] = value
    optimiser.load_state_dict(optimiser.state_dict() | {"state": state})


def learning_rate(config: TrainingConfig, step: int, *, steps_per_epoch: int) -> float:
    """Return the rate of the update after `step` updates: linear warm-up, then half a cosine to zero, or constant.

    >>> config = TrainingConfig(epochs=10, learning_rate=1.0, warmup_epochs=2)
    >>> [round(learning_rate(config, step, steps_per_epoch=1), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "constant":
        return config.learning_rate
    part = (step - warmup) / (config.epochs * steps_per_epoch - warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * part))


@dataclass(frozen=True)
class EveryAndLast(Every):
    """Yes at multiples of `num_steps`, and at the last step."""

    last: int

    def __call__(self, step: int) -> bool:
        return step == self.last or super().__call__(step)


def spectra_steps(num: int, last: int) -> At:
    """Choose about `num` steps for spectra, with the last: half evenly spaced, half in geometric progression.

    The early stages are short and the late stages are long; each half of the steps sees one kind.

    >>> spectra_steps(6, 1000)
    at(10, 100, 333, 667, 1000)
    """
    if num == 0:
        return at()
    even = {round(last * (k + 1) / (num - num // 2)) for k in range(num - num // 2)}
    geometric = {round(last ** ((k + 1) / (num // 2))) for k in range(num // 2)}
    return at(*(even | geometric | {last}))


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
    """Build a function from (batch of this process, learning rate) to (mean loss, number correct) over all processes.

    The function updates the model and returns a float32 tensor (2,) on the device without waiting for it. The number
    correct is 0 for tasks other than "classify", because over a vocabulary it would cost as much as a layer.
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

    # A CUDA graph replaces some 300 launches; it cannot be used with gradients that add up outside of the graph.
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
                metrics = metrics.clone()  # the next replay of the graph writes over it
                total = metrics if total is None else total + metrics
            if config.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, config.clip_norm)
            set_rate(optimiser, rate)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        assert total is not None
        return processes.reduce_metrics(total)

    return step


def build_evaluation(
    model: nn.Module,
    dataset: "Dataset",
    config: TrainingConfig,
    *,
    device: torch.device,
    processes: Processes,
) -> Callable[[], dict[str, Tensor]]:
    """Build a function that tests the model: it returns `test_loss` and, except for regression, `test_accuracy`.

    The scores stay on the device. The function is not compiled, because compiling takes as long as a hundred tests.
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
    """Return the dtype of sums over many batches; MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


class Readback:
    """The last loss and accuracy known to the CPU, and the first step whose loss was not finite.

    Losses come back from a GPU a window late, so that no step waits for the device.
    """

    def __init__(self, device: torch.device, samples: int) -> None:
        """Read nothing yet; `samples` is what the number correct is divided by."""
        self._window = _WINDOW if device.type == "cuda" else 1
        self._samples = samples
        self._waiting: list[tuple[int, Tensor]] = []
        self._coming: tuple[list[int], Tensor, torch.cuda.Event | None] | None = None
        self.loss = math.nan
        self.accuracy = math.nan
        self.diverged_at: int | None = None

    def add(self, step: int, metrics: Tensor) -> None:
        """Take the mean loss and the number correct of a step."""
        self._waiting.append((step, metrics))
        if len(self._waiting) >= self._window:
            self._send()
            if self._window == 1:
                self._receive()

    def settle(self) -> None:
        """Wait until everything is read."""
        self._send()
        self._receive()

    def _send(self) -> None:
        """Start to copy what waits, after reading what was sent a window before."""
        self._receive()
        if not self._waiting:
            return
        steps, metrics = zip(*self._waiting, strict=True)
        self._waiting = []
        stacked = torch.stack(metrics).to("cpu", non_blocking=True)
        event = None
        if metrics[0].is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._coming = (list(steps), stacked, event)

    def _receive(self) -> None:
        if self._coming is None:
            return
        steps, stacked, event = self._coming
        self._coming = None
        if event is not None:
            event.synchronize()
        self._read(steps, stacked.tolist())

    def _read(self, steps: Sequence[int], rows: Sequence[Sequence[float]]) -> None:
        self.loss, correct = rows[-1]
        self.accuracy = correct / self._samples
        if self.diverged_at is None:
            self.diverged_at = next(
                (s for s, (loss, _) in zip(steps, rows, strict=True) if not math.isfinite(loss)), None
            )
