"""GPT-2: pre-norm, learned positions, biases everywhere, output tied to the token embedding.

Legend: B sequences, T tokens, d width, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankrise.lab.models._attention import Attention, Block
from rankrise.lab.models._checks import Activation, check_activation, check_counts, check_scale, make_activation


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a `GPT`; the defaults are GPT-2 small, 124 million weights.

    Args:
        vocab_size: V.
        context: The most tokens of a sequence.
        num_layers: Blocks.
        num_heads: H.
        head_dim: r; H r need not be the width.
        width: d, of a token.
        mlp_width: Of the hidden layer of a block.
        activation: "gelu" (by tanh, as GPT-2 has it) or "relu".
        init_scale: Factor on the initial weights and biases of attention and MLP. Norms, positions and the token
            embedding, which is the output layer too, keep theirs.

    >>> GPTConfig(num_layers=6, num_heads=6, width=384, mlp_width=1536).head_dim
    64
    """

    vocab_size: int = 50257
    context: int = 1024
    num_layers: int = 12
    num_heads: int = 12
    head_dim: int = 64
    width: int = 768
    mlp_width: int = 3072
    activation: Activation = "gelu"
    init_scale: float = 1.0

    def __post_init__(self) -> None:
        check_counts(self, "activation", "init_scale")
        check_activation(self.activation)
        check_scale(self.init_scale)


class GPT(nn.Module):
    """Tokens to logits of the next token; make one with `build_model`.

    Initial law of GPT-2: normal with deviation 0.02, the two outputs of a block divided by √(2 num_layers), biases 0.
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
