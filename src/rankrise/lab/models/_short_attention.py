"""Attention over at most 65 tokens: on a GPU, a kernel that reads Q, K, V once and writes their gradients once.

An image of 64 patches and a class token has 65 tokens. General kernels pad these to 128 and, in the backward pass, read
the output and its norms again. Here one program holds a whole head: a tile of 64 tokens, and the last token by itself.
"""

from typing import Any

import torch
from torch import Tensor

MAX_TOKENS = 65
_HEAD_DIMS = (16, 32, 64, 128)


def is_short(qkv: Tensor) -> bool:
    """Whether the kernel takes this (B, T, 3, H, r): bfloat16 or float16 on a CUDA device, T ≤ 65, r a power of two."""
    return (
        qkv.device.type == "cuda"
        and torch.version.cuda is not None
        and qkv.dtype in (torch.bfloat16, torch.float16)
        and qkv.shape[1] <= MAX_TOKENS
        and qkv.shape[-1] in _HEAD_DIMS
    )


@torch.library.custom_op("rankrise::short_attention", mutates_args=())
def short_attention(qkv: Tensor) -> Tensor:
    """`softmax(Q Kᵀ / √r) V` of every head.

    Args:
        qkv: (B, T, 3, H, r), accepted by `is_short`.

    Returns:
        (B, T, H, r), contiguous.
    """
    from rankrise.lab.models import _short_attention_kernels as kernels

    qkv = qkv.contiguous()
    batch, tokens, _, heads, dim = qkv.shape
    out = qkv.new_empty(batch, tokens, heads, dim)
    kernels.forward[(batch * heads,)](
        qkv, out, tokens, heads, dim**-0.5, DIM=dim, HAS_LAST=tokens > 64, num_warps=4, maxnreg=168
    )
    return out


@short_attention.register_fake
def _(qkv: Tensor) -> Tensor:
    batch, tokens, _, heads, dim = qkv.shape
    return qkv.new_empty(batch, tokens, heads, dim)


@torch.library.custom_op("rankrise::short_attention_backward", mutates_args=())
def short_attention_backward(qkv: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient with respect to `qkv`; the probabilities are computed again instead of being stored."""
    from rankrise.lab.models import _short_attention_kernels as kernels

    qkv, grad = qkv.contiguous(), grad.contiguous()
    batch, tokens, _, heads, dim = qkv.shape
    out = torch.empty_like(qkv)
    kernels.backward[(batch * heads,)](
        qkv, grad, out, tokens, heads, dim**-0.5, DIM=dim, HAS_LAST=tokens > 64, num_warps=4
    )
    return out


@short_attention_backward.register_fake
def _(qkv: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    out: Tensor = short_attention_backward(ctx.saved_tensors[0], grad)
    return out


short_attention.register_autograd(_backward, setup_context=_save)
