"""The tight family has the constant that was derived; the bound holds; the error follows T/α."""

import math

import numpy as np
import pytest
import torch

from rankrise.theory import TIGHT_CONSTANT, kappa, lazy_flow, linearisation_bound, tight_model

CASES = [
    (alpha, end, lipschitz, loss)
    for alpha, end in ((1e3, 1.0), (1e3, 10.0), (1e4, 100.0))
    for lipschitz, loss in ((1.0, 1.0), (10.0, 1.0), (1.0, 100.0), (0.1, 0.01))
]


def tight_error(alpha, end, lipschitz, loss):
    model = tight_model(end, lipschitz, loss)
    return lazy_flow(model.h, model.start, model.targets, alpha=alpha, times=[end]).errors[-1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tight_constant(case):
    alpha, end, lipschitz, loss = case
    at = 1e-3  # κ
    alpha = end * lipschitz * math.sqrt(loss) / at
    error = tight_error(alpha, end, lipschitz, loss)
    assert error / (at * math.sqrt(loss)) == pytest.approx(TIGHT_CONSTANT, rel=0.01)


@pytest.mark.parametrize("at", [1e-4, 1e-2, 0.1, 1.0, 10.0, 100.0])
def test_tight_family_is_between_a_fifth_and_the_bound(at):
    for end, lipschitz, loss in ((1.0, 1.0, 1.0), (10.0, 3.0, 0.5)):
        alpha = end * lipschitz * math.sqrt(loss) / at
        k = kappa(alpha, end, lipschitz=lipschitz, initial_loss=loss)
        assert k == pytest.approx(at)
        error = tight_error(alpha, end, lipschitz, loss)
        assert min(k, 1) * math.sqrt(loss) / 5 <= error <= linearisation_bound(k, loss)


def test_error_depends_on_the_time_over_alpha_only():
    errors = [tight_error(1e3 * end, end, 1.0, 1.0) for end in (1.0, 10.0, 100.0)]
    assert max(errors) / min(errors) < 1.01


def net(seed, *, samples=8, dim=3, width=16):
    """A tanh network, centred so that its outputs begin at zero, and random ±1 labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, dim, generator=generator, dtype=torch.float64)
    w0 = torch.randn(width * (dim + 1), generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (samples,), generator=generator).double() * 2 - 1

    def h(w):
        first, second = w[: width * dim].view(width, dim), w[width * dim :]
        return torch.tanh(x @ first.T / dim**0.5) @ second / width**0.5

    at_start = h(w0)
    return lambda w: h(w) - at_start, w0, y


@pytest.mark.parametrize("seed", [0, 1])
def test_error_of_a_network_falls_as_one_over_alpha_and_stays_below_the_bound(seed):
    h, w0, y = net(seed)
    loss, times = 0.5 * float(y @ y), [1.0, 10.0, 30.0]
    errors = []
    for alpha in (30.0, 100.0, 300.0):
        flow = lazy_flow(h, w0, y, alpha=alpha, times=times)
        errors.append(flow.errors)
        assert (np.diff(flow.losses) < 0).all()
        assert (flow.moved <= np.sqrt(np.array(times) * loss) / alpha + 1e-9).all()  # ‖w − w₀‖ ≤ √(t R₀) / α
        lipschitz = path_lipschitz(h, w0, float(flow.moved.max()))
        for time, error in zip(times, flow.errors, strict=True):
            k = kappa(alpha, time, lipschitz=lipschitz, initial_loss=loss)
            assert error <= linearisation_bound(k, loss)
    slopes = np.diff(np.log(errors), axis=0) / np.diff(np.log([30.0, 100.0, 300.0]))[:, None]
    np.testing.assert_allclose(slopes, -1, atol=0.12)


def path_lipschitz(h, w0, radius):
    """The largest change of the Jacobian over the distance, in random directions of this length: below the true L."""
    jacobian, generator = torch.func.jacrev(h), torch.Generator().manual_seed(5)
    found = 0.0
    for _ in range(20):
        step = torch.randn(w0.shape, generator=generator, dtype=torch.float64)
        step *= radius / step.norm()
        found = max(found, (torch.linalg.matrix_norm(jacobian(w0 + step) - jacobian(w0), 2) / radius).item())
    return found


def test_linear_model_is_followed_exactly():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    flow = lazy_flow(
        lambda w: a @ w, torch.zeros(5), torch.ones(3, dtype=torch.float64), alpha=2.0, times=[0.1, 1.0, 5.0]
    )
    np.testing.assert_allclose(flow.errors, 0, atol=1e-8)


def sine(num_targets, *, times):
    return lazy_flow(torch.sin, torch.zeros(2), torch.zeros(num_targets), alpha=1.0, times=times)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kappa(0.0, 1.0, lipschitz=1.0, initial_loss=1.0), "`alpha` must be positive; got 0.0"),
        (lambda: tight_model(1.0, -1.0, 1.0), "`lipschitz` must be positive; got -1.0"),
        (
            lambda: lazy_flow(torch.sin, torch.zeros(2), torch.zeros(3), alpha=1.0, times=[1]),
            r"shape .* got \(3,\), \(2,\)",
        ),
        (
            lambda: lazy_flow(torch.sin, torch.zeros(2), torch.zeros(2), alpha=1.0, times=[1, 1]),
            "`times` must increase",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
