"""Attention that every kind of derivative can be taken through, for packages that differentiate models."""

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextlib.contextmanager
def differentiable_attention() -> Iterator[None]:
    """Compute attention by plain matrix products inside the block, because fused attention has no forward derivative.

    Torch's fast path for encoder layers is off too. When the first forward derivative is taken, torch loads parts of
    its own that it has deprecated; its warning about them is not shown.

    >>> with differentiable_attention():
    ...     torch.backends.mha.get_fastpath_enabled()
    False
    """
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
