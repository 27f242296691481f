"""The networks: vision transformer, GPT-2 and the toy head, and the attention and the block that they are made of.

Legend: B images, sequences or samples, C channels, P = (image / patch)² patches, T tokens of a sequence (P + 1 of an
image), d width, V vocabulary, H heads, r head dimension.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankrise.gauges import is_watched
from rankrise.lab.models._configs import Activation, GPTConfig, Norm, ToyHeadConfig, ViTConfig
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
        if is_short(qkv) and not self.is_causal and not is_watched():
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
        if is_watched():
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, 1 or T, r)
            heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        else:
            # Sums replace the matrix products, because with one query a sum reads k and v once and copies neither.
            wide = torch.promote_types(v.dtype, torch.float32)
            scores = (q.to(wide) * k.to(wide)).sum(-1, keepdim=True) * self.head_dim**-0.5  # (B, T, H, 1)
            heads = (scores.softmax(1) * v.to(wide)).sum(1, keepdim=True).to(v.dtype)  # (B, 1, H, r)
        out: Tensor = self.proj(heads.flatten(-2))
        return out


class Block(nn.Module):
    """A block of attention and MLP, normalised as the configuration says.

    The pre-norm block is `x + attention(norm(x))`, then `x + mlp(norm(x))`. The post-norm block is
    `norm(x + attention(x))`, then `norm(x + mlp(x))`. Without norm it is `x + attention(x)`, then `x + mlp(x)`.
    """

    def __init__(
        self, attention: Attention, *, width: int, mlp_width: int, activation: nn.Module, norm: Norm = "pre"
    ) -> None:
        super().__init__()
        self.is_post_norm = norm == "post"
        self.norm1 = make_norm(width, norm)
        self.attn = attention
        self.norm2 = make_norm(width, norm)
        self.mlp_in, self.mlp_out = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T, d) to (B, T, d)."""
        if self.is_post_norm:
            x = self.norm1(x + self.attn(x))
            out: Tensor = self.norm2(x + self.mlp(x))
            return out
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def mlp(self, x: Tensor) -> Tensor:
        """Apply the MLP to each token by itself, (..., d) to (..., d)."""
        out: Tensor = self.mlp_out(self.activation(self.mlp_in(x)))
        return out

    def scale_(self, factor: float) -> None:
        """Multiply the weights and biases of attention and MLP by `factor`; the norms stay as they are."""
        for module in (self.attn, self.mlp_in, self.mlp_out):
            scale_(module, factor)

    def first_token(self, x: Tensor) -> Tensor:
        """Return what `forward` gives for token 0, (B, 1, d): the last block needs only the class token."""
        if self.is_post_norm:
            x = self.norm1(x[:, :1] + self.attn.first_token(x))
            out: Tensor = self.norm2(x + self.mlp(x))
            return out
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


def make_norm(width: int, norm: Norm) -> nn.Module:
    """Return a LayerNorm, or a module that does nothing."""
    return nn.Identity() if norm == "none" else nn.LayerNorm(width)


class ViT(nn.Module):
    """The paper's vision transformer with a class token: images to logits. `build_model` makes one.

    It is pre-norm unless its configuration says otherwise. Its heads may be wider than width / heads.

    The classifier reads only the class token of the last block, so only that token is computed there. The outputs are
    the same, at nine tenths of the cost.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Linear(config.num_channels * config.patch_size**2, config.width)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, config.width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, config.num_tokens, config.width))
        blocks = [
            Block(
                Attention(config.width, config.num_heads, config.head_dim, qkv_bias=False, is_causal=False),
                width=config.width,
                mlp_width=config.mlp_width,
                activation=make_activation(config.activation),
                norm=config.norm,
            )
            for _ in range(config.num_layers)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = make_norm(config.width, config.norm)
        self.classifier = nn.Linear(config.width, config.num_classes)
        for block in blocks:
            block.scale_(config.init_scale)
        scale_(self.classifier, config.init_scale)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, image_size, image_size) to logits (B, num_classes)."""
        tokens = self.patch_embedding(patches(images, self.config.patch_size))  # (B, P, d)
        tokens = torch.cat([self.class_token.to(tokens.dtype).expand(len(tokens), -1, -1), tokens], 1)
        x = tokens + self.positions.to(tokens.dtype)  # (B, T, d)
        for block in self.blocks[:-1]:
            x = block(x)
        last = self.blocks[-1]
        assert isinstance(last, Block)
        x = last.first_token(x)  # (B, 1, d)
        logits: Tensor = self.classifier(self.norm(x[:, 0]))
        return logits


def patches(images: Tensor, size: int) -> Tensor:
    """Cut images (B, C, H, W) into (B, H W / size², C size²), row by row, each patch channel by channel.

    >>> patches(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[0, 1]
    tensor([2., 3., 6., 7.])
    """
    batch, channels, height, width = images.shape
    cut = images.reshape(batch, channels, height // size, size, width // size, size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


class GPT(nn.Module):
    """GPT-2: tokens to logits of the next token. `build_model` makes one.

    It is pre-norm, with learned positions, biases everywhere, and an output that is tied to the token embedding.

    Initial weights are GPT-2's: normal with standard deviation 0.02, the two output layers of a block divided by
    √(2 num_layers), biases 0.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        blocks = [
            Block(
                Attention(config.width, config.num_heads, config.head_dim, qkv_bias=True, is_causal=True),
                width=config.width,
                mlp_width=config.mlp_width,
                activation=make_activation(config.activation, approximate="tanh"),
            )
            for _ in range(config.num_layers)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.width)
        self.apply(_initialise)
        for block in blocks:
            for output in (block.attn.proj, block.mlp_out):
                nn.init.normal_(output.weight, std=0.02 / math.sqrt(2 * config.num_layers))
            block.scale_(config.init_scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, V)."""
        if tokens.shape[-1] > self.config.context:
            raise ValueError(f"A sequence must have at most {self.config.context} tokens; got {tokens.shape[-1]}.")
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.token_embedding(tokens) + self.positions(places)  # (B, T, d)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class ToyHead(nn.Module):
    """`softmax(X W_K W_Qᵀ Xᵀ) X W_V W_Oᵀ`, the head of the theory, with weights as nn.Linear stores them.

    The paper's toy with full matrices is this one attention head, without norm, residual stream and bias.
    """

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
