"""Plain optimisers: what a step is, convergence to the flow, Adam without stages, refusals."""

import math

import numpy as np
import pytest
import torch
from tests.theory.oracles import Head, float64_flow

from rankrise import theory


def head(samples=50, tokens=4, dim=4, seed=0):
    x, y, _ = theory.teacher_task(samples=samples, tokens=tokens, dim=dim, seed=seed)
    return theory.attention_head(x, y), *theory.gaussian_start(2 * dim, seed=seed + 1)


def activation_steps(run, threshold=1e-3):
    """The recorded step at which each |q_i| first passes the threshold; -1 if it never does."""
    above = run.products.abs() > threshold
    return torch.where(above.any(dim=0), run.steps[above.int().argmax(dim=0)], -1)


def test_a_step_of_gd_is_the_formula():
    net, u0, v0 = head()
    run = theory.descend(net, u0, v0, log10_alpha=-1, learning_rate=0.3, num_steps=1, weight_decay=0.01)
    u, v = 0.1 * u0, 0.1 * v0
    g = net.gradient(u * v)
    torch.testing.assert_close(run.u, u + 0.3 * (v * g - 0.01 * u))
    torch.testing.assert_close(run.v, v + 0.3 * (u * g - 0.01 * v))
    torch.testing.assert_close(run.products, torch.stack([u * v, run.u * run.v]))
    assert run.losses[0].item() == net.loss(u * v)


def test_gd_converges_to_the_flow_at_first_order():
    x, y, _ = theory.teacher_task(samples=20, tokens=3, dim=2)
    net, (u0, v0) = theory.attention_head(x, y), theory.gaussian_start(4, seed=1)
    t_end, clock = 1.0, 2 * math.log(10)
    exact = float64_flow(Head(*(z.numpy() for z in (x, y, u0, v0))), log10_alpha=-2, times=np.array([0.0, t_end]))[-1]
    errors = []
    for num_steps in (500, 1000):
        learning_rate = t_end * clock / num_steps
        run = theory.descend(
            net, u0, v0, log10_alpha=-2, learning_rate=learning_rate, num_steps=num_steps, every=num_steps
        )
        assert run.times is not None
        assert run.times[-1].item() == pytest.approx(t_end)
        errors.append(float(np.abs(run.products[-1].numpy() - exact).max()))
    assert errors[1] < 2e-2
    assert 1.7 < errors[0] / errors[1] < 2.3


def test_every_keeps_the_start_and_the_last_step():
    net, u0, v0 = head()
    run = theory.descend(net, u0, v0, log10_alpha=-2, learning_rate=0.1, num_steps=25, every=10)
    assert run.steps.tolist() == [0, 10, 20, 25]
    assert run.products.shape == (4, 8)
    assert run.losses.shape == (4,)


def test_one_batch_of_all_samples_is_gd():
    net, u0, v0 = head()
    settings = {"log10_alpha": -1, "learning_rate": 0.1, "num_steps": 20}
    full = theory.descend(net, u0, v0, **settings)
    batch = theory.descend(net, u0, v0, optimiser="sgd", batch_size=50, **settings)
    torch.testing.assert_close(batch.products, full.products, rtol=1e-9, atol=1e-12)


def test_sgd_sees_each_sample_once_an_epoch():
    """On orthogonal one-hot data an epoch of single samples moves each coordinate exactly once."""
    p = 6
    net = theory.linear(torch.eye(p), torch.ones(p))
    run = theory.descend(
        net,
        torch.ones(p),
        torch.ones(p) / 2,
        log10_alpha=-1,
        learning_rate=0.1,
        num_steps=p,
        optimiser="sgd",
        batch_size=1,
    )
    moved = (run.products.diff(dim=0) != 0).sum(dim=0)
    assert moved.tolist() == [1] * p


def test_sgd_is_a_function_of_its_seed_and_leaves_the_global_generator_alone():
    net, u0, v0 = head()
    settings = {"log10_alpha": -1, "learning_rate": 0.1, "num_steps": 20, "optimiser": "sgd", "batch_size": 7}
    state = torch.get_rng_state()
    first, again, other = (theory.descend(net, u0, v0, seed=seed, **settings) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.products, again.products)
    assert not torch.equal(first.products, other.products)


def test_penalty_on_the_products_reaches_the_batches():
    x, y, _ = theory.teacher_task(samples=10, tokens=3, dim=2)
    net, (u0, v0) = theory.attention_head(x, y, l2=0.5), theory.gaussian_start(4, seed=1)
    settings = {"log10_alpha": -1, "learning_rate": 0.1, "num_steps": 5}
    full = theory.descend(net, u0, v0, **settings)
    batch = theory.descend(net, u0, v0, optimiser="sgd", batch_size=10, **settings)
    torch.testing.assert_close(batch.products, full.products, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("log10_alpha", [-2, -4, -8])
def test_adam_removes_the_stages(log10_alpha):
    """Under Adam all eight coordinates activate within a few dozen steps; under gradient descent they take turns."""
    net, u0, v0 = head()
    adam = theory.descend(net, u0, v0, log10_alpha=log10_alpha, learning_rate=0.01, num_steps=40, optimiser="adam")
    steps = activation_steps(adam)
    assert adam.times is None
    assert (steps > 0).all()
    assert steps.max() <= 30


def test_gd_has_the_stages_that_adam_removes():
    net, u0, v0 = head()
    steps = activation_steps(theory.descend(net, u0, v0, log10_alpha=-4, learning_rate=0.05, num_steps=1000))
    active = steps[steps > 0].sort().values
    assert len(active) < 8
    assert (active.diff() > 20).all()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_step_moves_the_conserved_quantity_at_second_order_and_weight_decay_at_first(weight_decay):
    """c = u² - v² becomes c ((1 - ηλ)² - η² g²): kept by the flow, nearly kept by descent, not under weight decay."""
    net, u0, v0 = head()
    eta = 0.1
    run = theory.descend(net, u0, v0, log10_alpha=-1, learning_rate=eta, num_steps=1, weight_decay=weight_decay)
    g = net.gradient(run.products[0])
    factor = (1 - eta * weight_decay) ** 2 - (eta * g) ** 2
    c0 = 0.01 * (u0.square() - v0.square())
    torch.testing.assert_close(run.u.square() - run.v.square(), c0 * factor, rtol=1e-10, atol=1e-14)


def test_divergence_is_a_status_with_its_remedy():
    net, u0, v0 = head()
    run = theory.descend(net, u0, v0, log10_alpha=-1, learning_rate=50.0, num_steps=100)
    assert run.status is theory.Status.DIVERGED
    assert "Lower `learning_rate`" in run.status.remedy
    assert len(run.steps) == len(run.losses) < 101
    assert run.losses.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"u0": torch.ones(3)}, r"`u0` and `v0` must have shape \(8,\)"),
        ({"log10_alpha": 0}, r"`log10_alpha` must be from -300 to below 0 .* got 0: use `solve_flow`"),
        ({"log10_alpha": -301}, r"`log10_alpha` must be from -300"),
        ({"optimiser": "adamm"}, r"one of 'gd', 'sgd', 'adam'; got 'adamm'\. Did you mean 'adam'\?"),
        ({"optimiser": "lion"}, r"got 'lion'\. Choose one of them"),
        ({"learning_rate": 0.0}, r"`learning_rate` must be positive and finite; got 0.0"),
        ({"num_steps": -1}, r"`num_steps` must be at least 0"),
        ({"every": 0}, r"`every` at least 1; got 3 and 0"),
        ({"weight_decay": -1.0}, r"`weight_decay` must be zero or positive; got -1.0"),
        ({"optimiser": "sgd"}, r"`batch_size` must be given for 'sgd' and only there; got None for 'sgd'"),
        ({"batch_size": 5}, r"got 5 for 'gd'"),
        ({"optimiser": "sgd", "batch_size": 51}, r"`batch_size` must be from 1 to N = 50; got 51"),
    ],
)
def test_bad_arguments_are_refused_with_the_rule_and_the_remedy(changes, message):
    net, u0, v0 = head()
    arguments = {"u0": u0, "v0": v0, "log10_alpha": -2, "learning_rate": 0.1, "num_steps": 3} | changes
    with pytest.raises(ValueError, match=message):
        theory.descend(net, **arguments)
