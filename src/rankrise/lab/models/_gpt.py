"""GPT-2: pre-norm, learned positions, biases everywhere, output tied to the token embedding.

Legend: B sequences, T tokens, d width, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankrise.lab.models._attention import Attention, Block, make_activation
from rankrise.lab.models._configs import GPTConfig


class GPT(nn.Module):
    """Tokens to logits of the next token; make one with `build_model`.

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
