"""Entropy of attention against a softmax in float64 that is written out."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rankrise.gauges import attention_entropy, entropy_floor

BATCH, HEADS, TOKENS, R = 3, 4, 11, 8


def inputs(*, keys=TOKENS, kv_heads=HEADS, dtype=torch.float32, size=1.0):
    generator = torch.Generator().manual_seed(0)
    q = size * torch.randn(BATCH, HEADS, TOKENS, R, generator=generator, dtype=torch.float64)
    k = torch.randn(BATCH, kv_heads, keys, R, generator=generator, dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


def oracle(q, k, *, scale=None, is_causal=False, mask=None):
    """Entropy, largest logit, visible keys and share: row by row, in float64, with plain loops over keys."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    hidden = torch.zeros(logits.shape, dtype=torch.bool)
    if is_causal:
        hidden |= torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    if mask is not None and mask.dtype == torch.bool:
        hidden |= ~mask
    elif mask is not None:
        hidden |= mask <= torch.finfo(mask.dtype).min
        logits = logits + mask.double().clamp(min=-1e6)
    entropy = torch.full(logits.shape[:-1], math.nan, dtype=torch.float64)
    largest, visible = entropy.clone(), torch.zeros(entropy.shape, dtype=torch.long)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in entropy.shape)).tolist():
        row = logits[tuple(place)][~hidden[tuple(place)]]
        visible[tuple(place)] = len(row)
        if len(row):
            p = row.softmax(0)
            entropy[tuple(place)], largest[tuple(place)] = torch.special.entr(p).sum(), row.max()
    return entropy, largest, visible


def padding(keys=TOKENS):
    """The last keys of each sample but the first are hidden."""
    return (torch.arange(keys) < torch.tensor([keys, keys - 3, 1])[:, None])[:, None, None]


MASKS = {
    "none": {},
    "scale": {"scale": 0.7},
    "causal": {"is_causal": True},
    "boolean": {"mask": padding()},
    "additive": {"mask": torch.zeros(BATCH, 1, 1, TOKENS).masked_fill(~padding(), -math.inf)},
    "lowest number": {"mask": torch.zeros(BATCH, 1, 1, TOKENS).masked_fill(~padding(), torch.finfo().min)},
    "bias": {"mask": torch.linspace(-2, 2, TOKENS * TOKENS).reshape(TOKENS, TOKENS)},
    "by head": {"mask": torch.linspace(0, 3, HEADS)[:, None, None] * torch.arange(TOKENS)[None, None]},
    "causal and padding": {"is_causal": True, "mask": padding()},
}


@pytest.mark.parametrize("size", [1.0, 8.0])
@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("name", MASKS)
def test_entropy_is_that_of_an_explicit_softmax(name, kv_heads, size):
    q, k = inputs(kv_heads=kv_heads, size=size)
    found = attention_entropy(q, k, **MASKS[name])
    entropy, largest, visible = oracle(q, k, **MASKS[name])
    torch.testing.assert_close(found.entropy.double(), entropy, atol=1e-5, rtol=0, equal_nan=True)
    torch.testing.assert_close(found.max_logit.double(), largest, atol=1e-4, rtol=0)
    assert torch.equal(found.visible, visible)
    share = torch.where(visible > 1, entropy / visible.double().log(), math.nan)
    torch.testing.assert_close(found.share.double(), share, atol=1e-5, rtol=0, equal_nan=True)
    assert (found.floor <= found.entropy + 1e-5).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_close_to_those_they_were_rounded_from(dtype):
    q, k = inputs(dtype=torch.float64)
    found = attention_entropy(q.to(dtype), k.to(dtype), is_causal=True)
    entropy = oracle(q, k, is_causal=True)[0]
    torch.testing.assert_close(found.entropy.double(), entropy, atol=2e-2, rtol=0)
    exact = oracle(q.to(dtype), k.to(dtype), is_causal=True)[0]
    torch.testing.assert_close(found.entropy.double(), exact, atol=1e-5, rtol=0)


def test_float64_stays_float64():
    q, k = inputs(dtype=torch.float64, size=30.0)
    found = attention_entropy(q, k)
    torch.testing.assert_close(found.entropy, oracle(q, k)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["none", "causal", "bias", "boolean"])
@pytest.mark.parametrize("rows", [1, 2, 4, TOKENS, 100])
def test_sampled_rows_are_rows_of_the_whole(rows, name):
    q, k = inputs()
    whole = attention_entropy(q, k, **MASKS[name])
    some = attention_entropy(q, k, **MASKS[name], rows=rows)
    places = {1: [10], 2: [0, 10], 4: [0, 3, 7, 10]}.get(rows, list(range(TOKENS)))
    for field in ("entropy", "floor", "max_logit", "visible"):
        torch.testing.assert_close(getattr(some, field), getattr(whole, field)[..., places], atol=1e-6, rtol=0)


def test_chunks_give_the_same_numbers(monkeypatch):
    q, k = inputs()
    whole = attention_entropy(q, k, is_causal=True)
    monkeypatch.setattr("rankrise.gauges._entropy._MOST_LOGITS", 5)
    torch.testing.assert_close(attention_entropy(q, k, is_causal=True).entropy, whole.entropy, atol=1e-6, rtol=0)


def test_more_keys_than_queries():
    q, k = inputs(keys=17)
    for is_causal in (False, True):
        found = attention_entropy(q, k, is_causal=is_causal)
        torch.testing.assert_close(found.entropy.double(), oracle(q, k, is_causal=is_causal)[0], atol=1e-5, rtol=0)
    causal = found.visible[0, 0].tolist()
    assert causal == list(range(1, TOKENS + 1))  # as torch does it: query 0 sees key 0


def test_mask_means_what_torch_means():
    q, k = inputs()
    v = torch.eye(TOKENS).expand(BATCH, HEADS, TOKENS, TOKENS)
    for options in MASKS.values():
        if {"is_causal", "mask"} <= set(options):
            continue
        of_torch = {("attn_mask" if key == "mask" else key): value for key, value in options.items()}
        weights = scaled_dot_product_attention(q, k, v, **of_torch)
        expected = torch.special.entr(weights).sum(-1)
        torch.testing.assert_close(attention_entropy(q, k, **options).entropy, expected, atol=1e-5, rtol=0)


def test_row_that_sees_nothing_is_nan():
    q, k = inputs()
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    mask[4] = False
    found = attention_entropy(q, k, mask=mask)
    for values in (found.entropy, found.floor, found.max_logit, found.share):
        assert values[:, :, 4].isnan().all()
        assert values[:, :, :4].isfinite().all()
    assert (found.visible[:, :, 4] == 0).all()


def test_autocast_changes_nothing():
    q, k = inputs()
    plain = attention_entropy(q, k).entropy
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention_entropy(q, k).entropy, plain)


def test_floor_is_reached_by_one_large_logit_and_by_no_other_row():
    generator = torch.Generator().manual_seed(0)
    for n in (2, 3, 16, 64):
        for s in (0.1, 1.0, 3.0, 10.0, 800.0):
            floor = entropy_floor(torch.tensor(s, dtype=torch.float64), torch.tensor(n))
            one = torch.full((n,), -1 / n, dtype=torch.float64)
            one[0] += 1
            rows = torch.cat([one[None], torch.randn(500, n, generator=generator, dtype=torch.float64)])
            rows -= rows.mean(-1, keepdim=True)
            logits = s * rows / rows.norm(dim=-1, keepdim=True)
            entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
            assert abs(entropy[0] - floor) < 1e-12
            assert (entropy - floor).min() > -1e-12
    assert entropy_floor(torch.tensor(5.0), torch.tensor([0, 1])).tolist() == [0.0, 0.0]
    assert entropy_floor(torch.tensor([1e30, math.inf]), torch.tensor(4))[0] == 0


@pytest.mark.parametrize(
    ("q", "k", "options", "message"),
    [
        ((2, 3, 4, 5), (2, 3, 4, 6), {}, r"same batch and r; got \(2, 3, 4, 5\) and \(2, 3, 4, 6\)"),
        ((4, 5), (4, 5), {}, r"must be \(batch, heads, tokens, r\)"),
        ((2, 3, 4, 5), (2, 2, 4, 5), {}, "heads of `k` must divide those of `q`; got 2 and 3"),
        ((2, 3, 4, 5), (2, 3, 4, 5), {"mask": torch.ones(3, 4)}, r"must broadcast to \(2, 3, 4, 4\); got \(3, 4\)"),
        ((2, 3, 4, 5), (2, 3, 4, 5), {"rows": 0}, "`rows` must be at least 1; got 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(q, k, options, message):
    with pytest.raises(ValueError, match=message):
        attention_entropy(torch.zeros(q), torch.zeros(k), **options)
