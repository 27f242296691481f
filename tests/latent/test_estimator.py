"""`LatentRank` on data whose number of dimensions is known, and as scikit-learn would use it."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from rankrise.latent import LatentRank

SMALL = {"depth": 2, "code_dim": 4, "hidden": 16, "steps": 300, "learning_rate": 1e-2}


def plane(n=200, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return draw((n, 2)) @ draw((2, 6)) + 0.01 * draw((n, 6)) + 3


@pytest.fixture(scope="module")
def fitted():
    return LatentRank(**SMALL).fit(plane())


def test_plane_in_noise_has_two_dimensions(fitted):
    assert (fitted.rank_, fitted.verdict_.state) == (2, "plateau")
    assert fitted.gap_ == fitted.verdict_.gap > 10
    assert fitted.error_ < 0.05
    assert fitted.path_.spectra.shape == (101, 4)
    assert fitted.path_.steps[-1] == 300


def test_code_has_the_singular_values_of_the_path(fitted):
    code = fitted.transform(plane())
    assert code.shape == (200, 2)
    assert code.mean(0) == pytest.approx([0, 0], abs=1e-6)
    assert code.std(0) == pytest.approx(fitted.path_.spectra[-1][:2].numpy(), rel=1e-3)
    line = fitted.transform(torch.from_numpy(plane()[:3]).float())
    assert line == pytest.approx(code[:3], abs=1e-4)


def test_seed_alone_decides_and_the_callers_random_numbers_stay(fitted):
    before = torch.get_rng_state()
    again = LatentRank(**SMALL).fit(plane())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.path_.spectra, fitted.path_.spectra)
    other = LatentRank(**SMALL | {"seed": 1, "steps": 5}).fit(plane())
    assert not torch.equal(other.path_.spectra[0], fitted.path_.spectra[0])


def test_schedule_ends_and_time_is_the_sum_of_its_rates():
    short = LatentRank(**SMALL | {"steps": 40}).fit(plane())
    assert short.path_.times[0] == 0
    gained = short.path_.times.diff()
    assert gained.max() <= 1e-2 * (1 + 1e-9)
    assert gained[-1] < 0.01 * gained.max()


def test_it_is_cloned_and_told_apart_as_in_scikit_learn():
    estimator = LatentRank(depth=1, seed=7)
    copy = clone(estimator)
    assert copy is not estimator
    assert copy.get_params() == estimator.get_params()
    assert estimator.set_params(steps=3) is estimator
    assert "depth=1" in repr(estimator)
    assert "steps=3" in repr(estimator)
    with pytest.raises(ValueError, match="A parameter must be one of depth, code_dim"):
        estimator.set_params(width=3)
    assert LatentRank(**SMALL | {"steps": 2}).fit_transform(plane(20)).shape[0] == 20


def test_one_step_and_one_dimension_are_enough_to_run():
    found = LatentRank(depth=0, code_dim=1, hidden=2, steps=1).fit(plane(3))
    assert (found.rank_, found.verdict_.state) == (1, "no gap")


@pytest.mark.parametrize(
    ("params", "data", "message"),
    [
        ({"steps": 0}, plane(4), "`steps` must be an integer of at least 1; got 0"),
        ({"depth": 1.5}, plane(4), "`depth` must be an integer of at least 0; got 1.5"),
        ({"energy": 1.0}, plane(4), "`learning_rate` must be positive and 0 < `energy` < 1"),
        ({}, np.ones((4, 2)), "`X` must have rows that differ"),
        ({}, np.array([[1.0, np.nan]]), r"`X` must be a matrix \(n, d\) of finite numbers; got the shape \(1, 2\)"),
        ({}, np.ones(4), r"`X` must be a matrix \(n, d\) of finite numbers; got the shape \(4,\)"),
    ],
)
def test_refusals(params, data, message):
    with pytest.raises(ValueError, match=message):
        LatentRank(**SMALL | params).fit(data)


def test_transform_refuses(fitted):
    with pytest.raises(ValueError, match="`transform` must come after `fit`"):
        LatentRank().transform(plane())
    with pytest.raises(ValueError, match="`X` must have 6 columns, as in `fit`; got 2"):
        fitted.transform(np.ones((3, 2)))
