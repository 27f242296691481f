"""The processes that train together: one, or those `torchrun` started, by its environment variables."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

AGREE_EVERY = 10  # steps between agreements on whether to stop


@dataclass(frozen=True)
class Processes:
    """This process among the others. Alone, every method is free."""

    rank: int = 0
    world_size: int = 1
    control: dist.ProcessGroup | None = None  # on the CPU, so that agreeing does not wait for a GPU

    @property
    def is_main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model with gradients averaged over the processes."""
        if self.world_size == 1:
            return model
        ids = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)

    def synced(self, network: nn.Module, *, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Where a piece of a batch runs: only the last one's backward pass sends gradients."""
        if isinstance(network, DistributedDataParallel) and not is_last:
            return network.no_sync()
        return contextlib.nullcontext()

    def reduce_metrics(self, metrics: Tensor) -> Tensor:
        """(mean loss, number correct) over all, from those of every process."""
        if self.world_size > 1:
            dist.all_reduce(metrics)
            metrics[0] /= self.world_size
        return metrics

    def add_up(self, totals: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.world_size > 1:
            dist.all_reduce(totals)
        return totals

    def most(self, value: int) -> int:
        """The largest of the values of all processes; all must ask."""
        if self.world_size == 1:
            return value
        shared = torch.tensor(value)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self.control)
        return int(shared)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """Join the others if `torchrun` started some, and part from them at the end if they were joined here."""
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
    """Meet the others under a name that this start of them has for itself.

    On one host, `torchrun` keeps one store over all restarts (torch 2.13): a process that reads there the address of a
    dead one before the living has written its own waits half an hour. Over several hosts the count of restarts is not
    the same on all, so it is left as it is.
    """
    store, rank, world_size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        store = dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def choose_device(device: torch.device | str | None) -> torch.device:
    """The device asked for; else the GPU of this process, or the CPU.

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
