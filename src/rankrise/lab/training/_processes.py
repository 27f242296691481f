"""What reaches a training from outside: the other processes that `torchrun` started, and signals."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

AGREE_EVERY = 10  # steps between agreements on whether to stop
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Processes:
    """This process among those that train together. For a process that is alone, every method costs nothing."""

    rank: int = 0
    world_size: int = 1
    control: dist.ProcessGroup | None = None  # on the CPU, so that agreeing does not wait for a GPU

    @property
    def is_main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the model with gradients averaged over the processes."""
        if self.world_size == 1:
            return model
        ids = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)

    def synced(self, network: nn.Module, *, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the region in which a piece of a batch runs: only the last piece sends its gradients."""
        if isinstance(network, DistributedDataParallel) and not is_last:
            return network.no_sync()
        return contextlib.nullcontext()

    def reduce_metrics(self, metrics: Tensor) -> Tensor:
        """Turn (mean loss, number correct) of every process into those over all processes."""
        if self.world_size > 1:
            dist.all_reduce(metrics)
            metrics[0] /= self.world_size
        return metrics

    def add_up(self, totals: Tensor) -> Tensor:
        """Return the sum over the processes."""
        if self.world_size > 1:
            dist.all_reduce(totals)
        return totals

    def most(self, value: int) -> int:
        """Return the largest value among all processes; every process must call this."""
        if self.world_size == 1:
            return value
        shared = torch.tensor(value)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self.control)
        return int(shared)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """Join the other processes if `torchrun` started some, and part from them at the end if they were joined here."""
    is_ours = not dist.is_initialized()
    if is_ours and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes()
        return
    if is_ours:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        _initialise("nccl" if device.type == "cuda" else "gloo")
    control = dist.new_group(backend="gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), control)
    finally:
        if is_ours:
            dist.destroy_process_group()


def _initialise(backend: str) -> None:
    """Meet the other processes under a name that is used by this start only.

    On one host, `torchrun` keeps one store over all restarts (torch 2.13). A process that finds the address of a dead
    process there, before the living one has written its own, waits half an hour. Over several hosts the count of
    restarts differs from host to host, so the store is used as it is.
    """
    store, rank, world_size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        store = dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def choose_device(device: torch.device | str | None) -> torch.device:
    """Return the device asked for; without a wish, the GPU of this process, or the CPU.

    Raises:
        ValueError: There is no such device.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"`device` must be like 'cpu', 'cuda', 'cuda:1' or 'mps'; got {device!r}.") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"`device` must be here; got {str(device)!r}, and PyTorch finds no GPU. Use 'cpu'.")
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())))
    return chosen


class StopRequest:
    """SIGTERM and Ctrl-C ask training to end after its step; a second Ctrl-C ends it at once.

    Inside the context, signals are noted instead of ending the process. Only the main thread gets signals.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
