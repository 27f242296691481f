"""The paper's vision transformer: pre-norm, class token, heads wider than width / heads.

Legend: B images, C channels, P = (image / patch)² patches, T = P + 1 tokens, d width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankrise.lab.models._attention import Attention, Block, scale_
from rankrise.lab.models._checks import Activation, check_activation, check_counts, check_scale, make_activation


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of a `ViT`; the defaults are the paper's network for CIFAR, 15.8 million weights.

    Args:
        image_size: Pixels on a side.
        patch_size: Pixels on a side of a patch; divides `image_size`.
        num_channels: C.
        num_classes: Outputs.
        num_layers: Blocks.
        num_heads: H.
        head_dim: r; H r need not be the width.
        width: d, of a token.
        mlp_width: Of the hidden layer of a block.
        activation: "gelu" or "relu".
        init_scale: Factor on the initial weights and biases of attention, MLP and classifier. Norms, patch embedding,
            class token and positions keep theirs.

    >>> ViTConfig(num_classes=100).num_tokens
    65
    """

    image_size: int = 32
    patch_size: int = 4
    num_channels: int = 3
    num_classes: int = 10
    num_layers: int = 6
    num_heads: int = 8
    head_dim: int = 128
    width: int = 512
    mlp_width: int = 512
    activation: Activation = "gelu"
    init_scale: float = 1.0

    def __post_init__(self) -> None:
        check_counts(self, "activation", "init_scale")
        check_activation(self.activation)
        check_scale(self.init_scale)
        if self.image_size % self.patch_size:
            raise ValueError(
                f"`patch_size` must divide `image_size`; got {self.patch_size} and {self.image_size}. "
                "Crop or resize the images, or choose another patch."
            )

    @property
    def num_tokens(self) -> int:
        """T: the patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1


VIT_B16 = ViTConfig(
    image_size=224, patch_size=16, num_classes=1000, num_layers=12, num_heads=12, head_dim=64, width=768, mlp_width=3072
)  # the paper's network for ImageNet


class ViT(nn.Module):
    """Images to logits; make one with `build_model`.

    Of the last block only the class token is read, so only that is computed: the same function, a tenth cheaper.
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
