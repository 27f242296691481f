"""The toy of the paper with full matrices: one attention head, no norm, no residual, no bias.

Legend: B samples, n tokens, d their dimension, r the head dimension.
"""

import torch
from torch import Tensor, nn

from rankrise.lab.models._configs import ToyHeadConfig


class ToyHead(nn.Module):
    """`softmax(X W_K W_Qᵀ Xᵀ) X W_V W_Oᵀ`, the head of the theory, with weights as nn.Linear stores them."""

    num_heads = 1

    def __init__(self, config: ToyHeadConfig) -> None:
        super().__init__()
        self.config = config
        d, r = config.dim, config.head_dim
        self.query, self.key, self.value = (nn.Linear(d, r, bias=False) for _ in range(3))
        self.out = nn.Linear(r, d, bias=False)
        with torch.no_grad():
            for weight in self.parameters():
                weight.normal_(std=config.init_scale / d**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, n, d) to (B, n, d)."""
        scores = self.key(x) @ self.query(x).mT
        out: Tensor = self.out(scores.softmax(-1) @ self.value(x))
        return out
