"""Refuse what cannot be decomposed, before any work: the gate every function of this package passes its input through.

A bad value names the argument and the batch index, since one bad head in a stack of hundreds is the usual case.
"""

import torch
from torch import Tensor

# Sixth powers must stay in the range of float64.
_SMALLEST, _LARGEST = 1e-50, 1e50


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
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            kind = "meta" if tensor.device.type == "meta" else tensor.layout
            raise ValueError(f"`{name}` must be a dense tensor with values; got a {kind} tensor. Materialise it first.")
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
    wide = {
        n: t.to(torch.float32) if t.itemsize == 1 else t for n, t in tensors.items()
    }  # 8-bit floats cannot be compared
    extremes = torch.stack([value.double() for t in wide.values() for value in torch.aminmax(t.detach())]).abs().cpu()
    if extremes.isfinite().all() and ((extremes <= _LARGEST) & ((extremes >= _SMALLEST) | (extremes == 0))).all():
        return  # NaN and infinity survive a maximum; one transfer from an accelerator
    for name, tensor in wide.items():
        largest = tensor.abs().amax(dim=(-2, -1))
        _refuse_non_finite(name, largest, "Skip that entry, or go back to the last finite weights.")
        top = float(largest.max())
        if top > _LARGEST or 0 < top < _SMALLEST:
            raise ValueError(f"`{name}` must have its largest value between 1e-50 and 1e50; got {top:.3g}. Rescale it.")


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
    sigma = sigma.detach() if isinstance(sigma, Tensor) else torch.as_tensor(sigma, dtype=torch.float64, device="cpu")
    if sigma.is_complex() or sigma.dtype == torch.bool:
        raise ValueError(f"`sigma` must hold real numbers; got {sigma.dtype}.")
    if sigma.ndim < 1 or sigma.shape[-1] == 0:
        raise ValueError(f"`sigma` must hold at least one singular value, (..., k); got shape {tuple(sigma.shape)}.")
    sigma = sigma.to("cpu" if sigma.device.type == "mps" else sigma.device).to(torch.float64)
    _refuse_non_finite("sigma", sigma.abs().amax(dim=-1), "Leave that spectrum out.")
    negative = (sigma < 0).any(dim=-1)
    if negative.any():
        where = _at(negative)
        raise ValueError(f"`sigma` must not be negative; got {sigma.min().item():.3g}{where}.")
    return sigma


def floating_dtype(name: str, dtype: torch.dtype) -> None:
    """Refuse what is not a floating-point format."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"`{name}` must be a floating-point dtype such as torch.bfloat16; got {dtype!r}.")


def _refuse_non_finite(name: str, largest: Tensor, remedy: str) -> None:
    bad = ~largest.isfinite()
    if bad.any():
        more = f" ({int(bad.sum())} of {bad.numel()} batch entries)" if bad.sum() > 1 else ""
        raise ValueError(f"`{name}` must be finite; got NaN or infinity{_at(bad)}{more}. {remedy}")


def _at(bad: Tensor) -> str:
    """Name the first batch index that is bad, for a message; empty if there are no batch dimensions."""
    return f" at batch index {tuple(bad.nonzero()[0].tolist())}" if bad.ndim else ""
