"""Work through a stack of matrices a few at a time.

On a CPU the float64 temporaries of a few heads stay in the cache and in pages that are already mapped; the temporaries
of the whole stack would double the time. On an accelerator the whole stack is one chunk unless that would not fit.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_BYTES = {"cpu": 2**22, "cuda": 2**31}  # largest float64 input of a chunk: two heads of GPT-2 small on a CPU


def over_chunks(function: Callable[..., tuple[Tensor, ...]], *stacks: Tensor) -> tuple[Tensor, ...]:
    """Apply `function` to chunks of stacks (..., m_i, n_i) and join its results along the batch dimensions.

    Args:
        function: Takes as many tensors as there are stacks, each (chunk, m_i, n_i) in its own dtype on a device with
            float64, and returns tensors whose first dimension is the chunk.
        stacks: Tensors with the same batch dimensions.
    """
    batch = stacks[0].shape[:-2]
    device = torch.device("cpu") if stacks[0].device.type == "mps" else stacks[0].device
    flat = [s.detach().reshape(-1, *s.shape[-2:]) for s in stacks]
    bytes_each = 8 * sum(s.shape[-2] * s.shape[-1] for s in stacks)
    size = max(1, _BYTES.get(device.type, _BYTES["cuda"]) // bytes_each)
    results = [function(*(s[i : i + size].to(device) for s in flat)) for i in range(0, len(flat[0]), size)]
    return tuple(torch.cat(parts).reshape(batch + parts[0].shape[1:]) for parts in zip(*results, strict=True))
