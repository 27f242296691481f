"""Lazy networks: every case is a row that agrees with `theory.lazy_flow`, and mistakes are refused in sentences."""

import math
from dataclasses import replace

import numpy as np
import pytest

import rankrise as rr
from rankrise import theory
from rankrise.lab.experiments import NamedSpec, run_experiment
from rankrise.lab.experiments.kinds import LazySpec
from rankrise.lab.experiments.kinds._lazy_kind import tanh_model

TIGHT = LazySpec(network="tight", kappas=(1e-3, 1.0), ends=(1.0, 10.0), initial_losses=(1.0, 4.0))
TANH = LazySpec(network="tanh", alphas=(10.0, 100.0), ends=(3.0, 1.0), samples=5, dim=2, width=8, seed=1)


def columns(spec, out):
    run = rr.open_run(run_experiment(NamedSpec("mine", spec), out=out).folder)
    names = ("alpha", "time", "kappa", "initial_loss", "lipschitz", "error", "bound", "loss", "linearisation_error")
    return {name: run.scalar(name) for name in names}


def test_tight_cases(tmp_path):
    found = columns(TIGHT, tmp_path)
    assert len(found["kappa"]) == 8
    np.testing.assert_allclose(found["kappa"], [1e-3] * 4 + [1.0] * 4)
    np.testing.assert_allclose(found["alpha"], found["time"] * np.sqrt(found["initial_loss"]) / found["kappa"])
    constants = (found["error"] / (found["kappa"] * np.sqrt(found["initial_loss"])))[:4]
    np.testing.assert_allclose(constants, theory.TIGHT_CONSTANT, rtol=0.01)
    assert (found["error"] <= found["bound"]).all()


def test_tanh_cases_are_those_of_the_flow(tmp_path):
    found, model = columns(TANH, tmp_path), tanh_model(TANH)
    assert found["time"].tolist() == [1.0, 3.0, 1.0, 3.0]
    assert found["alpha"].tolist() == [10.0, 10.0, 100.0, 100.0]
    flow = theory.lazy_flow(model.h, model.start, model.targets, alpha=10.0, times=[1.0, 3.0])
    np.testing.assert_allclose(found["error"][:2], flow.errors, rtol=1e-6)
    np.testing.assert_allclose(found["loss"][:2], flow.losses)
    assert (found["error"] <= found["bound"]).all()
    assert (found["linearisation_error"][2:] < found["linearisation_error"][:2]).all()
    np.testing.assert_allclose(found["kappa"], found["time"] / found["alpha"] * found["lipschitz"] * math.sqrt(2.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kappas": ()}, r"`kappas` must hold positive numbers; got \(\)"),
        ({"ends": (1.0, -1.0)}, r"`ends` must hold positive numbers; got \(1.0, -1.0\)"),
        ({"network": "tanh"}, r"`alphas` must hold positive numbers; got \(\)"),
        ({"width": 0}, "`width` must be a whole number of at least 1; got 0"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(TIGHT, **changes)
