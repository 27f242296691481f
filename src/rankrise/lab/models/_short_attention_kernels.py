# mypy: ignore-errors
"""The Triton kernels of `_short_attention`; imported only where there is a CUDA device.

One program is one head of one sample: a tile of up to 64 tokens, and for T = 65 one token more, the "last", handled by
sums over the tile instead of a second tile. In names, 1 is the tile and c the last token: p1c is a column of P, pc1 a
row. Backwards, with P = softmax(S), S = Q Kᵀ scale:

dV = Pᵀ dO,   dP = dO Vᵀ,   dS = P ⊙ (dP − rowsum(P ⊙ dP)),   dQ = dS K scale,   dK = dSᵀ Q scale.
"""

import triton
import triton.language as tl

_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(base, rows, cols, stride, tokens):
    return tl.load(base + rows[:, None] * stride + cols[None, :], mask=rows[:, None] < tokens, other=0.0)


@triton.jit
def _store(base, rows, cols, stride, tokens, values):
    values = values.to(base.dtype.element_ty)
    tl.store(base + rows[:, None] * stride + cols[None, :], values, mask=rows[:, None] < tokens)


@triton.jit
def _probabilities(q1, k1, rows, tokens, scale):
    """Softmax of the tile, when there is no last token."""
    s = tl.where(rows[None, :] < tokens, tl.dot(q1, k1.T) * (scale * _LOG2_E), -float("inf"))
    p = tl.exp2(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit
def _probabilities_with_last(q1, k1, qc, kc, scale):
    """Softmax of 65 × 65 scores, as tile (64, 64), column (64,), row (64,) and corner."""
    factor = scale * _LOG2_E
    s11 = tl.dot(q1, k1.T) * factor
    s1c = tl.sum(q1.to(tl.float32) * kc[None, :], 1) * factor
    sc1 = tl.sum(k1.to(tl.float32) * qc[None, :], 1) * factor
    scc = tl.sum(qc * kc, 0) * factor
    top1 = tl.maximum(tl.max(s11, 1), s1c)
    topc = tl.maximum(tl.max(sc1, 0), scc)
    p11, p1c = tl.exp2(s11 - top1[:, None]), tl.exp2(s1c - top1)
    pc1, pcc = tl.exp2(sc1 - topc), tl.exp2(scc - topc)
    total1 = 1 / (tl.sum(p11, 1) + p1c)
    totalc = 1 / (tl.sum(pc1, 0) + pcc)
    return p11 * total1[:, None], p1c * total1, pc1 * totalc, pcc * totalc


@triton.jit
def forward(qkv, out, tokens, heads, scale, DIM: tl.constexpr, HAS_LAST: tl.constexpr):
    """Write `softmax(Q Kᵀ scale) V`; see `short_attention`."""
    sample, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    width = heads * DIM
    stride = 3 * width
    q = qkv + sample.to(tl.int64) * tokens * stride + head * DIM
    o = out + sample.to(tl.int64) * tokens * width + head * DIM
    rows, cols = tl.arange(0, 64), tl.arange(0, DIM)
    q1 = _load(q, rows, cols, stride, tokens)
    k1 = _load(q + width, rows, cols, stride, tokens)
    v1 = _load(q + 2 * width, rows, cols, stride, tokens)
    if HAS_LAST:
        last = q + 64 * stride + cols
        qc, kc = tl.load(last).to(tl.float32), tl.load(last + width).to(tl.float32)
        vc = tl.load(last + 2 * width).to(tl.float32)
        p11, p1c, pc1, pcc = _probabilities_with_last(q1, k1, qc, kc, scale)
        o1 = tl.dot(p11.to(v1.dtype), v1) + p1c[:, None] * vc[None, :]
        oc = tl.sum(pc1[:, None] * v1.to(tl.float32), 0) + pcc * vc
        tl.store(o + 64 * width + cols, oc.to(v1.dtype))
    else:
        o1 = tl.dot(_probabilities(q1, k1, rows, tokens, scale).to(v1.dtype), v1)
    _store(o, rows, cols, width, tokens, o1)


@triton.jit
def backward(qkv, grad, dqkv, tokens, heads, scale, DIM: tl.constexpr, HAS_LAST: tl.constexpr):
    """Write the gradients of Q, K and V; see `short_attention_backward`.

    Tiles are loaded from the cache each time they are used, because keeping them would spill registers.
    """
    sample, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    width = heads * DIM
    stride = 3 * width
    start = sample.to(tl.int64) * tokens * stride + head * DIM
    q, dq = qkv + start, dqkv + start
    k, dk = q + width, dq + width
    v, dv = k + width, dk + width
    do = grad + sample.to(tl.int64) * tokens * width + head * DIM
    rows, cols = tl.arange(0, 64), tl.arange(0, DIM)
    dtype = qkv.dtype.element_ty
    if HAS_LAST:
        last = 64 * stride + cols
        qc, kc = tl.load(q + last).to(tl.float32), tl.load(k + last).to(tl.float32)
        vc, doc = tl.load(v + last).to(tl.float32), tl.load(do + 64 * width + cols).to(tl.float32)
        p11, p1c, pc1, pcc = _probabilities_with_last(
            _load(q, rows, cols, stride, tokens), _load(k, rows, cols, stride, tokens), qc, kc, scale
        )
        do1 = _load(do, rows, cols, width, tokens)
        _store(dv, rows, cols, stride, tokens, tl.dot(p11.to(dtype).T, do1) + pc1[:, None] * doc[None, :])
        tl.store(dv + last, (tl.sum(p1c[:, None] * do1.to(tl.float32), 0) + pcc * doc).to(dtype))

        do1 = _load(do, rows, cols, width, tokens)
        v1 = _load(v, rows, cols, stride, tokens)
        dp11, dp1c = tl.dot(do1, v1.T), tl.sum(do1.to(tl.float32) * vc[None, :], 1)
        dpc1, dpcc = tl.sum(v1.to(tl.float32) * doc[None, :], 1), tl.sum(doc * vc, 0)
        mean1 = tl.sum(p11 * dp11, 1) + p1c * dp1c
        meanc = tl.sum(pc1 * dpc1, 0) + pcc * dpcc
        s11 = (p11 * (dp11 - mean1[:, None]) * scale).to(dtype)
        s1c, sc1 = p1c * (dp1c - mean1) * scale, pc1 * (dpc1 - meanc) * scale
        scc = pcc * (dpcc - meanc) * scale

        k1 = _load(k, rows, cols, stride, tokens)
        _store(dq, rows, cols, stride, tokens, tl.dot(s11, k1) + s1c[:, None] * kc[None, :])
        tl.store(dq + last, (tl.sum(sc1[:, None] * k1.to(tl.float32), 0) + scc * kc).to(dtype))

        q1 = _load(q, rows, cols, stride, tokens)
        _store(dk, rows, cols, stride, tokens, tl.dot(s11.T, q1) + sc1[:, None] * qc[None, :])
        tl.store(dk + last, (tl.sum(s1c[:, None] * q1.to(tl.float32), 0) + scc * qc).to(dtype))
    else:
        p11 = _probabilities(
            _load(q, rows, cols, stride, tokens), _load(k, rows, cols, stride, tokens), rows, tokens, scale
        )
        do1 = _load(do, rows, cols, width, tokens)
        _store(dv, rows, cols, stride, tokens, tl.dot(p11.to(dtype).T, do1))
        dp11 = tl.dot(_load(do, rows, cols, width, tokens), _load(v, rows, cols, stride, tokens).T)
        s11 = (p11 * (dp11 - tl.sum(p11 * dp11, 1)[:, None]) * scale).to(dtype)
        _store(dq, rows, cols, stride, tokens, tl.dot(s11, _load(k, rows, cols, stride, tokens)))
        _store(dk, rows, cols, stride, tokens, tl.dot(s11.T, _load(q, rows, cols, stride, tokens)))
