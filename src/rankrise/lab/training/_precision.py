"""Number formats of matrix products: by autocast, or by a switch of PyTorch that is put back."""

import contextlib
from collections.abc import Iterator

import torch

from rankrise.lab.training._config import Precision


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """The region in which the forward pass runs."""
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
