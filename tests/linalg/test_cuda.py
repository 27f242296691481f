"""CPU and GPU agree within the promised bound; the batched driver is checked where it is least accurate."""

import pytest
import torch
from tests.linalg.oracles import error_bound

import rankrise as rr

pytestmark = pytest.mark.gpu


def spectra():
    """Flat, steep, low-rank and mixed stacks of heads as large as the paper's."""
    g = torch.Generator().manual_seed(0)
    k0, q0 = (torch.randn(12, 512, 128, generator=g) / 512**0.5 for _ in range(2))
    noise = torch.randn(12, 512, 128, generator=g) / 512**0.5
    low = torch.randn(12, 512, 2, generator=g) @ torch.randn(12, 2, 128, generator=g) / 512**0.5
    yield "flat", (k0 + 1e-3 * noise, q0, k0, q0)
    yield "tiny", (k0 + 1e-6 * noise, q0 + 1e-6 * noise.flip(0), k0, q0)
    yield "steep", (k0 + low + 1e-3 * noise, q0 + 1e-3 * noise, k0, q0)
    yield "low rank", (k0 + low, q0, k0, q0)
    decay = torch.logspace(0, -9, 128)
    yield "graded", (k0 * decay + 1e-2 * noise * decay, q0 * decay, k0 * decay, q0 * decay)


@pytest.mark.parametrize("name", ["flat", "tiny", "steep", "low rank", "graded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_the_cpu(name, dtype):
    change = [f.to(dtype) for f in dict(spectra())[name]]
    on_gpu = [f.cuda() for f in change]
    bound = error_bound(*change)[:, None]
    sigma = rr.delta_spectrum(*on_gpu)
    assert sigma.is_cuda
    assert ((sigma.cpu() - rr.delta_spectrum(*change)).abs() <= bound).all()
    assert ((rr.delta_svd(*on_gpu).S.cpu() - rr.delta_svd(*change).S).abs() <= bound).all()
    gpu, cpu = rr.delta_stable_rank(*on_gpu), rr.delta_stable_rank(*change)
    torch.testing.assert_close(gpu.value.cpu(), cpu.value, rtol=1e-4, atol=0)


def test_bits_do_not_depend_on_autocast_or_tf32():
    change = [f.cuda() for f in dict(spectra())["flat"]]
    for function in (rr.delta_spectrum, lambda *c: rr.delta_stable_rank(*c).value):
        expected = function(*change)
        assert torch.equal(function(*change), expected)
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                assert torch.equal(function(*change), expected)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False


def test_rank_above_floor_on_the_gpu():
    g = torch.Generator().manual_seed(0)
    base = torch.randn(3, 256, 384, generator=g)
    change = 0.002 * torch.randn(3, 256, 4, generator=g) @ torch.randn(3, 4, 384, generator=g)
    result = rr.rank_above_floor(base.cuda(), (base + change).bfloat16().cuda())
    assert result.rank.tolist() == [4, 4, 4]
