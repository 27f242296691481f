"""Run a model beside its training without a trace: its mode, the random numbers and its gradients stay as they are."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from rankrise.tracking._parameters import is_sharded
from rankrise.tracking._schedule import Schedule, as_schedule

Inputs = Tensor | Mapping[str, Any] | Sequence[Any]  # what the model is called with


def bare(model: nn.Module) -> nn.Module:
    """Return the model itself, without torch.compile, DDP or DataParallel around it.

    >>> layer = nn.Linear(2, 2)
    >>> bare(nn.DataParallel(layer)) is layer
    True
    """
    while True:
        if isinstance(inside := getattr(model, "_orig_mod", None), nn.Module):
            model = inside
        elif isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        else:
            return model


def refuse_sharded(model: nn.Module, probe: str) -> None:
    """Refuse a model that one process alone cannot run.

    Raises:
        ValueError: The parameters of the model are sharded.
    """
    if is_sharded(model):
        raise ValueError(
            f"{probe} runs the model in one process, so its weights must be whole there; they are sharded. "
            "Leave the probe out, or train with DDP."
        )


@contextlib.contextmanager
def aside(model: nn.Module, autocast: torch.dtype | None = None) -> Iterator[None]:
    """Put the model into evaluation mode inside the block, and leave everything as it was.

    The mode of every module is restored, and so are the random numbers of the CPU and of the model's device. Compiled
    functions run uncompiled in the block, so that hooks and replaced functions are seen and nothing is compiled again.

    Args:
        model: The model that is run in the block.
        autocast: The dtype of autocast in the block; None for no autocast.

    >>> model = nn.Dropout(0.5)
    >>> with aside(model):
    ...     print(model.training)
    False
    >>> model.training
    True
    """
    device = device_of(model)
    modes = [(module, module.training) for module in model.modules()]
    on_gpu = [device] if device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=on_gpu))
        stack.enter_context(torch.autocast(device.type, autocast, enabled=autocast is not None))
        if "torch._dynamo" in sys.modules:  # without this module nothing can have been compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(_restore, modes)
        for module, _ in modes:
            module.training = False
        yield


def _restore(modes: Sequence[tuple[nn.Module, bool]]) -> None:
    for module, mode in modes:
        module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter; the CPU for a model without parameters."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments and keywords


def as_call(inputs: Inputs) -> Call:
    """Return arguments and keywords: a tensor is the only argument, a mapping has keywords, a sequence has arguments.

    >>> as_call({"tokens": 3}), as_call([1, 2])
    (((), {'tokens': 3}), ((1, 2), {}))
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs,) if isinstance(inputs, Tensor) else tuple(inputs), {}


def of_each(function: Callable[[Tensor], Tensor], call: Call) -> Call:
    """Return the call with the function applied to every tensor in it."""
    args, kwargs = call
    every = [function(x) if isinstance(x, Tensor) else x for x in (*args, *kwargs.values())]
    return tuple(every[: len(args)]), dict(zip(kwargs, every[len(args) :], strict=True))


def outputs_of(result: Any) -> Tensor:
    """Return the tensor in the result of a model: the result itself, its field `logits`, or its first entry.

    Raises:
        ValueError: There is no such tensor.

    >>> outputs_of((torch.ones(2), None)).tolist()
    [1.0, 1.0]
    """
    if isinstance(result, Tensor):
        return result
    found = getattr(result, "logits", None)
    if found is None and isinstance(result, tuple | list) and result:
        found = result[0]
    if not isinstance(found, Tensor):
        raise ValueError(
            f"The model must give a tensor, a tuple that begins with one, or an object with `logits`; "
            f"got {type(result).__name__}."
        )
    return found


class Clock:
    """Tells when a probe reads: at every measurement of the tracker, or only at those that its own schedule allows."""

    def __init__(self, every: int | Schedule | None) -> None:
        self._due = None if every is None else as_schedule(every)

    def __call__(self, step: int) -> bool:
        """Whether to read at `step`."""
        return self._due is None or self._due(step)
