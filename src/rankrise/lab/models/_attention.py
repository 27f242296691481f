"""Multi-head attention with one product for Q, K and V, and the two circuits readable from its weights.

Legend: B samples, T tokens, d width, H heads, r head dimension.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankrise.lab.models._configs import Activation
from rankrise.lab.models._short_attention import is_short, short_attention


class Attention(nn.Module):
    """`softmax(Q Kᵀ / √r) V W_Oᵀ` over H heads of any dimension r.

    `qkv.weight` holds W_Q | W_K | W_V as blocks of H r rows, each head by head: three weights in one storage, so that a
    batch needs one matrix product. `proj.weight` is W_O (d, H r).

    Args:
        width: Width d of a token.
        num_heads: Number H of heads.
        head_dim: Dimension r of a head; H r need not be d.
        qkv_bias: Whether Q, K and V have a bias.
        is_causal: Whether a token sees only itself and the tokens before it.
    """

    def __init__(self, width: int, num_heads: int, head_dim: int, *, qkv_bias: bool, is_causal: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.is_causal = num_heads, head_dim, is_causal
        self.qkv = nn.Linear(width, 3 * num_heads * head_dim, bias=qkv_bias)
        self.proj = nn.Linear(num_heads * head_dim, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T, d) to (B, T, d)."""
        qkv = self.qkv(x).view(*x.shape[:2], 3, self.num_heads, self.head_dim)  # (B, T, 3, H, r)
        if is_short(qkv) and not self.is_causal:
            heads = short_attention(qkv)  # (B, T, H, r)
        else:
            q, k, v = qkv.transpose(1, 3).unbind(2)  # (B, H, T, r)
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal).transpose(1, 2)
        out: Tensor = self.proj(heads.flatten(-2))
        return out

    def first_token(self, x: Tensor) -> Tensor:
        """Return what `forward` gives for token 0, (B, 1, d), without computing the queries of the other tokens."""
        rows = self.num_heads * self.head_dim
        bias = self.qkv.bias
        q = F.linear(x[:, :1], self.qkv.weight[:rows], None if bias is None else bias[:rows])
        kv = F.linear(x, self.qkv.weight[rows:], None if bias is None else bias[rows:])
        q = q.view(-1, 1, self.num_heads, self.head_dim)  # (B, 1, H, r)
        k, v = kv.view(*x.shape[:2], 2, self.num_heads, self.head_dim).unbind(2)  # (B, T, H, r)
        # Sums replace the matrix products: with one query they read k and v once and need no copy of them.
        wide = torch.promote_types(v.dtype, torch.float32)
        scores = (q.to(wide) * k.to(wide)).sum(-1, keepdim=True) * self.head_dim**-0.5  # (B, T, H, 1)
        heads = (scores.softmax(1) * v.to(wide)).sum(1, keepdim=True).to(v.dtype)  # (B, 1, H, r)
        out: Tensor = self.proj(heads.flatten(-2))
        return out


class Block(nn.Module):
    """Pre-norm block: `x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, attention: Attention, *, width: int, mlp_width: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = attention
        self.norm2 = nn.LayerNorm(width)
        self.mlp_in, self.mlp_out = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T, d) to (B, T, d)."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def mlp(self, x: Tensor) -> Tensor:
        """Apply norm and MLP to each token by itself, (..., d) to (..., d)."""
        out: Tensor = self.mlp_out(self.activation(self.mlp_in(x)))
        return out

    def scale_(self, factor: float) -> None:
        """Multiply the weights and biases of attention and MLP by `factor`; the norms stay as they are."""
        for module in (self.attn, self.mlp_in, self.mlp_out):
            scale_(module, factor)

    def first_token(self, x: Tensor) -> Tensor:
        """Return what `forward` gives for token 0, (B, 1, d): the last block needs only the class token."""
        x = x[:, :1] + self.attn.first_token(self.norm1(x))
        return x + self.mlp(self.norm2(x))


@torch.no_grad()
def scale_(module: nn.Module, factor: float) -> None:
    """Multiply every weight and bias in `module` by `factor`."""
    for parameter in module.parameters():
        parameter.mul_(factor)


def make_activation(name: Activation, *, approximate: Literal["none", "tanh"] = "none") -> nn.Module:
    """Return the activation module of this name."""
    return nn.ReLU() if name == "relu" else nn.GELU(approximate=approximate)
