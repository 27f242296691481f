"""Attention and blocks against nn.TransformerEncoderLayer and a plain float64 loop over heads."""

import pytest
import torch
from torch import nn

from rankrise.lab.models._short_attention import is_short
from rankrise.lab.models._transformers import Attention, Block, scale_


def make(*, is_causal=False, qkv_bias=True, head_dim=6, norm="pre"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        attention = Attention(12, 2, head_dim, qkv_bias=qkv_bias, is_causal=is_causal)
        block = Block(attention, width=12, mlp_width=20, activation=nn.GELU(), norm=norm)
        return block.double(), torch.randn(3, 7, 12, dtype=torch.float64)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_is_the_formula_of_every_head(is_causal):
    block, x = make(is_causal=is_causal, head_dim=5)
    attention = block.attn
    q, k, v = attention.qkv.weight.unflatten(0, (3, 2, 5))
    biases = attention.qkv.bias.unflatten(0, (3, 2, 5))
    out = attention.proj.bias.expand(3, 7, 12)
    for head in range(2):
        queries, keys, values = (x @ w[head].T + b[head] for w, b in zip((q, k, v), biases, strict=True))
        scores = queries @ keys.mT / 5**0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
        out = out + scores.softmax(-1) @ values @ attention.proj.weight[:, 5 * head : 5 * head + 5].T
    torch.testing.assert_close(attention(x), out)


def test_block_is_the_pre_norm_encoder_layer():
    block, x = make()
    layer = nn.TransformerEncoderLayer(
        12, 2, 20, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    layer.load_state_dict(
        {
            "self_attn.in_proj_weight": block.attn.qkv.weight,
            "self_attn.in_proj_bias": block.attn.qkv.bias,
            **{f"self_attn.out_proj.{n}": p for n, p in block.attn.proj.named_parameters()},
            **{f"linear1.{n}": p for n, p in block.mlp_in.named_parameters()},
            **{f"linear2.{n}": p for n, p in block.mlp_out.named_parameters()},
            **{f"norm1.{n}": p for n, p in block.norm1.named_parameters()},
            **{f"norm2.{n}": p for n, p in block.norm2.named_parameters()},
        }
    )
    torch.testing.assert_close(block(x), layer(x))


def test_post_norm_block_is_the_post_norm_encoder_layer():
    block, x = make(norm="post")
    layer = nn.TransformerEncoderLayer(12, 2, 20, dropout=0.0, activation="gelu", batch_first=True, dtype=torch.float64)
    layer.load_state_dict(
        {
            "self_attn.in_proj_weight": block.attn.qkv.weight,
            "self_attn.in_proj_bias": block.attn.qkv.bias,
            **{f"self_attn.out_proj.{n}": p for n, p in block.attn.proj.named_parameters()},
            **{f"linear1.{n}": p for n, p in block.mlp_in.named_parameters()},
            **{f"linear2.{n}": p for n, p in block.mlp_out.named_parameters()},
            **{f"norm1.{n}": p for n, p in block.norm1.named_parameters()},
            **{f"norm2.{n}": p for n, p in block.norm2.named_parameters()},
        }
    )
    torch.testing.assert_close(block(x), layer(x))


def test_a_block_without_norm_is_the_sum():
    block, x = make(norm="none")
    middle = x + block.attn(x)
    torch.testing.assert_close(block(x), middle + block.mlp(middle))
    assert not any("norm" in name for name, _ in block.named_parameters())


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_first_token_is_that_of_the_whole_block_with_its_gradients(qkv_bias, norm):
    block, x = make(qkv_bias=qkv_bias, norm=norm)
    target = torch.linspace(-1, 1, 12, dtype=torch.float64)
    gradients = []
    for output in (block(x)[:, :1], block.first_token(x)):
        block.zero_grad()
        (output @ target).sum().backward()
        gradients.append([p.grad.clone() for p in block.parameters()])
    torch.testing.assert_close(block.first_token(x), block(x)[:, :1])
    torch.testing.assert_close(*gradients)


def test_scale_leaves_the_norms():
    block, _ = make()
    before = {n: p.clone() for n, p in block.named_parameters()}
    block.scale_(0.5)
    for name, now in block.named_parameters():
        torch.testing.assert_close(now, before[name] * (1 if "norm" in name else 0.5))


def test_scale_of_one_changes_nothing():
    block, _ = make()
    before = [p.clone() for p in block.parameters()]
    scale_(block, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, block.parameters(), strict=True))


def test_the_kernel_is_not_for_the_cpu():
    assert not is_short(torch.zeros(1, 65, 3, 2, 64, dtype=torch.bfloat16))


def test_first_token_in_double_precision_is_exact_to_it():
    attention = Attention(16, 2, 8, qkv_bias=True, is_causal=False).double()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    torch.testing.assert_close(attention.first_token(x), attention(x)[:, :1], rtol=1e-13, atol=1e-14)
