"""Stages against a second, plain implementation on heads not used for development, and rules that are wrong."""

import numpy as np
import pytest
from tests.theory.matrix.instances import head, head_data, sensing, start
from tests.theory.matrix.plain import PlainHead, PlainStages

from rankrise import theory


def compare(seed, d, samples, tokens, num_stages, log10_alphas=(-64,)):
    """Limits agree to 1e-6, times to 1e-4, also flagged ones; how many are not flagged, for each α."""
    net = head(seed, d, samples, tokens)
    stages = theory.matrix_stages(net, max_stages=num_stages, rtol=1e-5)
    plain = PlainStages(PlainHead(*head_data(seed, d, samples, tokens)), num_stages=num_stages)
    assert plain.matrices == list(stages.matrices)
    np.testing.assert_allclose(stages.times, plain.times, rtol=1e-6)
    factors = [factor.numpy() for factor in start(net, seed)]
    starts = [np.concatenate(pair) for pair in zip(factors[::2], factors[1::2], strict=True)]
    num_trusted = []
    for log10_alpha in log10_alphas:
        prediction = stages.predict(factors, log10_alpha=log10_alpha)
        measured = plain.predict(starts, log10_alpha=log10_alpha, digits=220 * log10_alpha // -64)
        assert not prediction.turned
        np.testing.assert_allclose(prediction.times.numpy(), np.array(measured), rtol=1e-4)
        num_trusted.append(sum(not flagged for flagged in prediction.flagged))
    return num_trusted


def test_a_fresh_head_agrees_with_the_plain_implementation():
    assert compare(41, 2, 24, 4, num_stages=3) == [3]


@pytest.mark.slow
def test_a_larger_fresh_head_agrees_with_the_plain_implementation():
    """At 1e-64 its transitions overlap, and all times but the first are flagged, although they agree."""
    assert compare(42, 3, 24, 4, num_stages=4, log10_alphas=(-64, -128)) == [1, 4]


def times_by(rule, stages):
    """Stage times of one product by another rule for the exponents, on the same stationary points."""
    s, t, times = np.zeros(len(stages.spectra[0][0])), 0.0, []
    for k in range(len(stages.times)):
        sigma = stages.spectra[k][0].numpy()
        s = rule(s)
        wait = (1 - s[0]) / sigma[0]
        t, s = t + wait, (s + sigma * wait)[1:]
        times.append(t)
    return times


def test_rules_that_forget_the_order_of_exponents_are_wrong():
    """T_3 of 4 x 4 sensing is 2.28, and the flow's 2.27875 at 1e-1000; two tempting rules give 1.19 and 3.48."""
    stages = theory.matrix_stages(sensing(0), t_end=4.0, rtol=1e-4)
    flow_at_1e_minus_1000 = 2.27875
    assert times_by(lambda s: s, stages) == pytest.approx(stages.times.tolist(), rel=1e-9)
    assert float(stages.times[2]) == pytest.approx(flow_at_1e_minus_1000, rel=0.003)
    everyone_from_the_largest = times_by(lambda s: np.full_like(s, s.max()), stages)[2]
    everyone_from_zero = times_by(np.zeros_like, stages)[2]
    assert abs(everyone_from_the_largest / flow_at_1e_minus_1000 - 1) > 0.1
    assert abs(everyone_from_zero / flow_at_1e_minus_1000 - 1) > 0.1
