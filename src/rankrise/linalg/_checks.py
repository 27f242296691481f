"""Refuse what cannot be decomposed, before any work: the gate every function of this package passes its input through.

A bad value names the argument and the batch index, since one bad head in a stack of hundreds is the usual case.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_P = ParamSpec("_P")
_T = TypeVar("_T")


def measurement(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run `function` without gradients and outside autocast, so that its bits do not depend on the caller's context."""

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        first = next((a for a in args if isinstance(a, Tensor)), None)
        device_type = "cpu" if first is None else first.device.type
        with torch.no_grad(), torch.autocast(device_type, enabled=False):
            return function(*args, **kwargs)

    return wrapped


def stacks(**tensors: Tensor) -> None:
    """Refuse what is not a stack of finite real matrices, all of one dtype on one device.

    Args:
        tensors: The caller's arguments by name, each (..., rows, columns).

    Raises:
        ValueError: Naming the argument, and for a non-finite value the first batch index that holds one.
    """
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"`{name}` must be a torch tensor; got {type(tensor).__name__}.")
        if not tensor.is_floating_point():
            raise ValueError(f"`{name}` must hold real floating-point numbers; got {tensor.dtype}. Convert it first.")
        if tensor.ndim < 2:
            raise ValueError(f"`{name}` must have shape (..., rows, columns); got {tuple(tensor.shape)}.")
        if tensor.numel() == 0:
            raise ValueError(f"`{name}` must not be empty; got shape {tuple(tensor.shape)}.")
        if tensor.device != tensors[first].device:
            raise ValueError(
                f"`{name}` must be on the device of `{first}`; got {tensor.device} and {tensors[first].device}."
            )
        if tensor.dtype != tensors[first].dtype:
            raise ValueError(
                f"`{name}` must have the dtype of `{first}`; got {tensor.dtype} and {tensors[first].dtype}."
            )
    wide = {n: t.to(torch.float32) if t.itemsize == 1 else t for n, t in tensors.items()}  # 8-bit floats do not compare
    extremes = torch.stack([value for t in wide.values() for value in torch.aminmax(t)])
    if not extremes.isfinite().all():  # NaN and infinity survive a maximum; one transfer from an accelerator
        for name, tensor in wide.items():
            _refuse_non_finite(name, tensor.abs().amax(dim=(-2, -1)))


def same_shape(**tensors: Tensor) -> None:
    """Refuse tensors whose shapes differ from the first one's."""
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if tensor.shape != tensors[first].shape:
            shapes = f"{tuple(tensor.shape)} and {tuple(tensors[first].shape)}"
            raise ValueError(f"`{name}` must have the shape of `{first}`; got {shapes}.")


def factors_of_a_product(left: Tensor, right: Tensor) -> None:
    """Refuse `left` (..., d, r) and `right` (..., e, r) that have no product `left rightᵀ`."""
    if left.shape[:-2] != right.shape[:-2] or left.shape[-1] != right.shape[-1]:
        raise ValueError(
            "`left` (..., d, r) and `right` (..., e, r) must agree in r and in the batch dimensions; "
            f"got {tuple(left.shape)} and {tuple(right.shape)}. An nn.Linear weight (out, in) is passed transposed."
        )


def change_of_a_product(left: Tensor, right: Tensor, left0: Tensor, right0: Tensor) -> None:
    """Refuse factors that have no `left rightᵀ − left0 right0ᵀ`."""
    stacks(left=left, right=right, left0=left0, right0=right0)
    same_shape(left=left, left0=left0)
    same_shape(right=right, right0=right0)
    factors_of_a_product(left, right)


def spectrum_in_float64(sigma: Tensor) -> Tensor:
    """Validate singular values `(..., k)`: at least one, finite, not negative."""
    sigma = torch.as_tensor(sigma)
    if sigma.is_complex() or sigma.dtype == torch.bool:
        raise ValueError(f"`sigma` must hold real numbers; got {sigma.dtype}.")
    if sigma.ndim < 1 or sigma.shape[-1] == 0:
        raise ValueError(f"`sigma` must hold at least one singular value, (..., k); got shape {tuple(sigma.shape)}.")
    sigma = sigma.to("cpu" if sigma.device.type == "mps" else sigma.device).to(torch.float64)
    _refuse_non_finite("sigma", sigma.abs().amax(dim=-1))
    if (sigma < 0).any():
        raise ValueError(f"`sigma` must not be negative; got {sigma.min().item():.3g}.")
    return sigma


def _refuse_non_finite(name: str, largest: Tensor) -> None:
    bad = (~largest.isfinite()).nonzero()
    if len(bad):
        index = tuple(bad[0].tolist())
        where = f" at batch index {index}" if index else ""
        more = f" ({len(bad)} of {largest.numel()} batch entries)" if len(bad) > 1 else ""
        raise ValueError(
            f"`{name}` must be finite; got NaN or infinity{where}{more}. "
            "Skip that entry, or go back to the last finite weights."
        )
