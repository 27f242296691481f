"""Verdicts on paths whose answer is known."""

import math

import pytest
import torch

from rankrise.latent import LatentPath


def path(spectra, times=None):
    spectra = torch.tensor(spectra)
    steps = torch.arange(len(spectra))
    return LatentPath(steps, steps if times is None else torch.tensor(times), torch.zeros(len(spectra)), spectra)


ONE, TWO = [1.0, 1e-3, 1e-3], [1.0, 0.5, 1e-3]


@pytest.mark.parametrize(
    ("found", "rank", "state", "settled_at"),
    [
        (path([ONE, TWO, TWO, TWO, TWO]), 2, "plateau", 1),
        (path([ONE, ONE, ONE, TWO, TWO]), 2, "still rising", 3),
        (path([TWO, TWO, TWO, TWO, ONE]), 1, "still rising", 4),
        (path([[1.0, 0.5, 0.3]] * 5), 3, "no gap", 0),  # every dimension is used: the code may be too small
        (path([[1.0, 0.1, 0.011, 0.01]] * 5), 2, "no gap", 0),
        (path([ONE, ONE, ONE, TWO, TWO], times=[0.0, 0.1, 0.2, 0.3, 1.0]), 2, "plateau", 3),  # time is not steps
    ],
)
def test_verdict_needs_the_gap_and_the_rest(found, rank, state, settled_at):
    verdict = found.verdict()
    assert (verdict.rank, verdict.state, verdict.settled_at) == (rank, state, settled_at)
    assert str(verdict).startswith(f"{rank} direction")


def test_gap_behind_the_rank():
    assert path([TWO] * 3).verdict().gap == pytest.approx(500)
    assert math.isnan(path([[1.0, 0.9]] * 3).verdict().gap)
    assert path([[1.0, 0.0]] * 3).verdict().gap == pytest.approx(1e12)


def test_ranks_by_energy():
    assert path([ONE, TWO]).ranks().tolist() == [1, 2]
    assert path([ONE, TWO]).ranks(0.7).tolist() == [1, 1]
