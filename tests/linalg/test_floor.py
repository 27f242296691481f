"""Planted changes under rounding: the rank above the floor is the planted one, and rounding alone has none."""

import pytest
import torch

import rankrise as rr
from rankrise import linalg


def checkpoint_pair(seed, *, planted, weights, on_grid, shape=(256, 384), size=3e-3, dtype=torch.bfloat16):
    """A base and a change of relative size 0.3%, stored in bfloat16."""
    m, n = shape
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(m, n, generator=g) / n**0.5
    if weights == "scaled rows":
        base = base * torch.randn(m, 1, generator=g).exp()
    elif weights == "outlier columns":
        base[:, torch.randperm(n, generator=g)[:4]] *= 50
    if on_grid:
        base = base.to(dtype).float()
    change = torch.zeros(m, n)
    if planted:
        change = torch.randn(m, planted, generator=g) @ torch.randn(planted, n, generator=g)
        change *= size * base.norm() / change.norm()
    return base, (base + change).to(dtype)


WEIGHTS = ["independent", "scaled rows", "outlier columns"]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("on_grid", [False, True])
@pytest.mark.parametrize("planted", [0, 4, 16])
@pytest.mark.parametrize(("shape", "seeds"), [((128, 192), 25), pytest.param((256, 384), 100, marks=pytest.mark.slow)])
def test_planted_rank_is_found(weights, on_grid, planted, shape, seeds):
    results = [
        rr.rank_above_floor(*checkpoint_pair(s, planted=planted, weights=weights, on_grid=on_grid, shape=shape))
        for s in range(seeds)
    ]
    wrong = sum(r.rank.item() != planted for r in results)
    assert wrong <= 0.05 * seeds
    covered = sum(r.lower.item() <= planted <= r.upper.item() for r in results)
    assert covered >= 0.95 * seeds
    assert all(r.lower <= r.rank <= r.upper for r in results)


@pytest.mark.slow
@pytest.mark.parametrize("planted", [0, 4, 16])
def test_planted_rank_is_found_at_the_size_of_gpt2(planted):
    for seed in range(5):
        pair = checkpoint_pair(seed, planted=planted, weights="scaled rows", on_grid=True, shape=(768, 768))
        assert rr.rank_above_floor(*pair).rank == planted


@pytest.mark.parametrize(
    ("shape", "planted", "size", "seeds"),
    [
        ((512, 640), 1, 5e-3, 3),
        ((768, 768), 1, 1e-2, 3),
        ((768, 768), 2, 3e-3, 2),
        pytest.param((1024, 1024), 1, 1e-2, 5, marks=pytest.mark.slow),
        pytest.param((2048, 2048), 2, 3e-3, 1, marks=pytest.mark.slow),
        pytest.param((4096, 4096), 4, 3e-3, 1, marks=pytest.mark.slow),
    ],
)
def test_what_rounding_makes_of_few_directions_is_not_counted(shape, planted, size, seeds):
    """On the grid, round(base + c) − base is nonlinear in c: a plain count reads 2 to 8 for a planted 1 or 2."""
    for seed in range(seeds):
        pair = checkpoint_pair(seed, planted=planted, weights="independent", on_grid=True, shape=shape, size=size)
        result = rr.rank_above_floor(*pair)
        assert result.rank == planted, (seed, int((result.sigma > result.floor).sum()))


def test_floor_is_tight_over_rounding_alone():
    """The largest value of rounding alone lies just below the floor, and its spectrum on the predicted one."""
    for weights in WEIGHTS:
        base, tuned = checkpoint_pair(0, planted=0, weights=weights, on_grid=False)
        result = rr.rank_above_floor(base, tuned)
        assert 0.9 < result.sigma[0] / result.floor < 1.0
        assert (result.sigma[:50] / result.rounding[:50] - 0.95).abs().max() < 0.05


@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_pruned_weights_do_not_raise_the_floor(sparsity):
    """A weight that is exactly zero has no rounding error; it must not count like one of size one."""
    g = torch.Generator().manual_seed(0)
    keep = torch.rand(200, 300, generator=g) > sparsity
    base = torch.where(keep, 0.02 * torch.randn(200, 300, generator=g), 0.0)
    assert rr.rank_above_floor(base, base.bfloat16()).rank == 0
    tuned = (base * 1.5).bfloat16()
    result = rr.rank_above_floor(base, tuned)
    assert result.sigma[0] > 30 * result.floor


def test_energy_rank_misreads_the_same_pair():
    base, tuned = checkpoint_pair(0, planted=4, weights="independent", on_grid=False)
    sigma = torch.linalg.svdvals(tuned.double() - base.double())
    assert rr.energy_rank(sigma, 0.9) > 50
    assert rr.rank_above_floor(base, tuned).rank == 4


def test_both_rounded_separately_from_one_master():
    """Neither checkpoint holds the weights it was rounded from; the floor counts both errors."""
    g = torch.Generator().manual_seed(0)
    master = torch.randn(200, 300, generator=g)
    base = master.bfloat16()
    for offset in range(20):  # the same weights up to far less than an ulp, rounded again elsewhere on the grid
        other = (master * (1 + 1e-3 * torch.randn(200, 300, generator=g))).bfloat16()
        result = rr.rank_above_floor(base, other)
        assert result.rank == 0, offset


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32]
)
def test_rounding_alone_has_the_predicted_variance(dtype):
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(400, 400, generator=g, dtype=torch.float64) / 20
    error = weight.to(torch.float32).to(dtype).double() - weight
    ratio = error.square().mean() / linalg.rounding_variance(weight, dtype).mean()
    assert 0.9 < ratio < 1.1
    result = rr.rank_above_floor(weight.float(), weight.float().to(dtype), base_dtype=torch.float32, tuned_dtype=dtype)
    assert result.rank == 0


def test_a_true_change_in_float32_is_all_above_the_floor():
    g = torch.Generator().manual_seed(0)
    base = torch.randn(60, 80, generator=g)
    tuned = base + 1e-3 * torch.randn(60, 80, generator=g)
    assert rr.rank_above_floor(base, tuned).rank == 60


def test_identical_checkpoints_and_zero_weights():
    base = torch.zeros(10, 12)
    base[:5] = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    assert rr.rank_above_floor(base, base).upper == 0
    tuned = base.clone()
    tuned[8, 3] = 1.0  # a weight that was exactly zero has moved: no rounding does that
    assert rr.rank_above_floor(base, tuned).rank == 1


def test_upcast_checkpoints_without_a_change_have_rank_zero():
    """bfloat16 values lie on float16's grid as well, mostly; they must be taken for what they are."""
    g = torch.Generator().manual_seed(0)
    for _ in range(10):
        master = torch.randn(64, 64, generator=g)
        base = master.bfloat16().float()
        tuned = (master * (1 + 1e-3 * torch.randn(64, 64, generator=g))).bfloat16().float()
        assert rr.rank_above_floor(base, tuned).rank == 0


def test_upcast_checkpoint_is_known_by_its_grid():
    base, tuned = checkpoint_pair(0, planted=4, weights="independent", on_grid=True)
    assert linalg.storage_dtype(tuned.float()) == torch.bfloat16
    assert rr.rank_above_floor(base.bfloat16().double(), tuned.double()).rank == 4


def test_batches():
    pairs = [checkpoint_pair(s, planted=p, weights="independent", on_grid=False) for s, p in enumerate((0, 4))]
    base, tuned = (torch.stack([p[i] for p in pairs]) for i in (0, 1))
    assert rr.rank_above_floor(base, tuned).rank.tolist() == [0, 4]


def test_errors():
    with pytest.raises(ValueError, match=r"`tuned` must have the shape of `base`; got \(3, 2\) and \(2, 3\)"):
        rr.rank_above_floor(torch.ones(2, 3), torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"`tuned_dtype` must be a floating-point dtype such as torch\.bfloat16; got"):
        rr.rank_above_floor(torch.ones(2, 2), torch.ones(2, 2), tuned_dtype=torch.int8)
    with pytest.raises(ValueError, match="`tuned` must be finite"):
        rr.rank_above_floor(torch.ones(2, 2), torch.full((2, 2), torch.inf))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "planted"), [((96, 96), 60), ((64, 256), 50), ((128, 96), 4)])
def test_one_rounding_of_many_directions(shape, planted, dtype):
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        base = torch.randn(*shape, generator=g).to(dtype)
        change = (
            torch.randn(shape[0], planted, generator=g).double() @ torch.randn(planted, shape[1], generator=g).double()
        )
        change *= 0.5 * base.double().norm() / change.norm()
        assert rr.rank_above_floor(base, (base.double() + change).to(dtype)).rank == planted


@pytest.mark.parametrize(("dtype", "steps"), [(torch.float32, (1, 2, 10, 100)), (torch.bfloat16, (1, 2, 10))])
def test_rounding_at_every_step_gives_an_upper_bound(dtype, steps):
    """Each step adds a share of one change in place; the floor knows one rounding."""
    g = torch.Generator().manual_seed(0)
    base = 0.02 * torch.randn(256, 256, generator=g)
    left, right = (torch.linalg.qr(torch.randn(256, 4, generator=g)).Q for _ in range(2))
    change = left @ right.mT * (0.03 * base.norm() / 2)
    ranks = []
    for count in steps:
        tuned = base.to(dtype)
        for _ in range(count):
            tuned = (tuned.float() + change / count).to(dtype)
        ranks.append(int(rr.rank_above_floor(base.to(dtype), tuned).rank))
    assert ranks[0] == 4
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("spikes", [0, 4])
@pytest.mark.parametrize("shape", [(96, 160), (128, 64)])  # the last value of a square random one is near 0
@pytest.mark.parametrize("size", [1e-3, 0.1])
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 50), marks=pytest.mark.slow)])
def test_a_dense_change_is_all_above_the_floor(shape, spikes, size, seeds):
    """Whatever stands out of it: nothing in a dense change says that rounding made it."""
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        base, change = torch.randn(2, *shape, generator=g)
        change += 0.5 * torch.randn(shape[0], spikes, generator=g) @ torch.randn(spikes, shape[1], generator=g)
        assert rr.rank_above_floor(base, base + size * change).rank == min(shape)
