"""What tracking costs on a model: time and bytes of one measurement of each kind."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankrise.tracking._measurement import Clock
from rankrise.tracking._recorder import to_block
from rankrise.tracking._stacks import Readout


@dataclass(frozen=True)
class Estimate:
    """What tracking costs here: one measurement of each kind, timed on weights moved by noise, the slowest case."""

    initial_bytes: int  # size of the initial weights in the run directory and, unless on disk, in memory
    ranks_ms: float  # time of a measurement on the clock `every`
    ranks_bytes: int  # size of the rows it writes
    spectra_ms: float  # time of a measurement on the clock `spectra`
    spectra_bytes: int  # size of its rows and directions


def estimate(measure: Callable[[frozenset[Clock]], Readout], *, model: nn.Module, initial_bytes: int) -> Estimate:
    """Time `measure`, which takes the clocks that have struck, once on each clock."""
    cost: dict[str, tuple[float, int]] = {}
    for clock, due in (("ranks", frozenset[Clock]({"ranks"})), ("spectra", frozenset[Clock]({"ranks", "spectra"}))):
        for _ in range(2):  # the first warms up
            _synchronise(model)
            begin = time.perf_counter()
            readout = measure(due)
            num_bytes = to_block(0, [], readout.measurements).nbytes
            num_bytes += sum(t.nbytes for t in readout.directions.values())
            _synchronise(model)
            cost[clock] = (1e3 * (time.perf_counter() - begin), num_bytes)
    return Estimate(initial_bytes, *cost["ranks"], *cost["spectra"])


def _synchronise(model: nn.Module) -> None:
    if any(parameter.is_cuda for parameter in model.parameters()):
        torch.cuda.synchronize()


def moved(weight: Tensor) -> Tensor:
    """The weight with noise of a thousandth of its size: a flat spectrum, the slowest case."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32, device="cpu").to(weight)
    return weight + 1e-3 * weight.abs().mean() * noise
