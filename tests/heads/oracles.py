"""Brute force for the head resolver: both circuits read off a module's own forward, without knowing a single weight."""

import torch
from torch import nn


def read_circuits(attend, d, *, scale, unit=lambda x: x, seed=0):
    """`W_K W_Qᵀ` and `W_V W_Oᵀ` of every head, each (heads, d, d), from what attention does to tokens.

    Scores: feed every unit vector and a zero token; log-probabilities relative to the zero token are
    `scale * x_queryᵀ (Q Kᵀ) x_key`. Outputs: `out_i = Σ_h Σ_j p^h_ij x_j M_h`, solved for all M_h by least squares.

    Args:
        attend: From tokens (batch, tokens, d) to probabilities (batch, heads, tokens, tokens) and outputs.
        d: Width of the tokens.
        scale: Factor of the scores.
        unit: Gives tokens size one in the sense of a norm in front of attention.
        seed: Of the random tokens.
    """
    basis = unit(torch.eye(d, dtype=torch.float64))
    size = basis[0, 0]
    probabilities, _ = attend(torch.cat([basis, torch.zeros(1, d, dtype=torch.float64)])[None])
    log = probabilities[0].double().log()
    scores = log[:, :d, :d] - log[:, :d, d:]  # (heads, query, key)
    generator = torch.Generator().manual_seed(seed)
    num_heads, tokens = len(log), 12
    x = unit(torch.randn(4 * num_heads * d // tokens, tokens, d, generator=generator, dtype=torch.float64))
    probabilities, out = attend(x)
    attended = probabilities.double() @ x[:, None]  # (batch, heads, tokens, d)
    rows = attended.transpose(1, 2).reshape(-1, num_heads * d)
    solution = torch.linalg.lstsq(rows, out.double().reshape(len(rows), -1)).solution
    return scores.mT / (scale * size**2), solution.reshape(num_heads, d, -1)


def products(layer, get):
    """Both products as the resolver has them."""
    return [left @ right.mT for left, right in (layer.factors(circuit, get) for circuit in ("kq", "vo"))]


def without_biases(module, seed=0):
    """Double precision, weights of order one, no biases, no dropout: what is left is bilinear."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias") or "bias_" in name:
                parameter.zero_()
            elif parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.35)
            else:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def assert_same_circuits(layer, module, attend, d, **options):
    """The resolver's products are those of the module's forward."""
    with torch.no_grad():
        expected = read_circuits(attend, d, scale=options.pop("scale", layer.head_dim**-0.5), **options)
    for got, want in zip(products(layer, module.get_parameter), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5 * float(want.abs().max()))


class TimmAttention(nn.Module):
    """Attention as in timm.models.vision_transformer: a fused `qkv`, reshaped (3, heads, r)."""

    def __init__(self, dim, num_heads, head_dim=None):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim or dim // num_heads
        self.qkv = nn.Linear(dim, 3 * self.num_heads * self.head_dim)
        self.proj = nn.Linear(self.num_heads * self.head_dim, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        p = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(dim=-1)
        return p, self.proj((p @ v).transpose(1, 2).reshape(b, n, -1))


NAMES = ("query", "key", "value", "out")


class SeparateAttention(nn.Module):
    """Four projections under any names, with any number of key heads; `linear` makes a projection."""

    def __init__(self, dim, num_heads, num_kv_heads=None, head_dim=None, names=NAMES, linear=nn.Linear):
        super().__init__()
        self.num_heads, self.groups = num_heads, num_heads // (num_kv_heads or num_heads)
        self.width = head_dim or dim // num_heads
        inner, kv = num_heads * self.width, num_heads // self.groups * self.width
        self.names = names
        for name, (a, b) in zip(names, [(dim, inner), (dim, kv), (dim, kv), (inner, dim)], strict=True):
            setattr(self, name, linear(a, b))

    def forward(self, x):
        q, k, v, o = (getattr(self, name) for name in self.names)
        q, k, v = (f(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for f in (q, k, v))
        k, v = (t.repeat_interleave(self.groups, dim=1) for t in (k, v))
        p = (q @ k.mT * self.width**-0.5).softmax(-1)
        return p, o((p @ v).transpose(1, 2).flatten(2))
