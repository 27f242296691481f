"""The paper's vision transformer: pre-norm, with a class token and heads wider than width / heads.

Legend: B images, C channels, P = (image / patch)² patches, T = P + 1 tokens, d width.
"""

import torch
from torch import Tensor, nn

from rankrise.lab.models._attention import Attention, Block, make_activation, scale_
from rankrise.lab.models._configs import ViTConfig


class ViT(nn.Module):
    """Images to logits; make one with `build_model`.

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
            )
            for _ in range(config.num_layers)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.width)
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
