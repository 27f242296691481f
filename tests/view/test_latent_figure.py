"""The figure of a code along training: what is in it."""

import torch

from rankrise.latent import LatentPath
from rankrise.view import latent_figure


def test_counted_directions_are_lines_and_the_others_dots() -> None:
    spectra = torch.tensor([[1.0] + [0.01] * 19, *[[1.0, 0.5] + [0.001] * 18] * 3])
    steps = torch.arange(4) * 10
    path = LatentPath(steps, steps, torch.tensor([1.0, 0.5, 0.2, 0.1]), spectra)
    figure = latent_figure(path, path.verdict(), planted=2)
    values, rank, loss = figure.panels
    assert [trace.style for trace in values.traces] == ["line"] * 2 + ["dotted"] * 14
    assert values.traces[1].y == tuple(spectra[:, 1].tolist())
    assert values.marks[0].x == 10
    assert [trace.label for trace in rank.traces] == ["99.9% of the variance", "planted"]
    assert rank.traces[0].y == tuple(map(float, path.ranks()))
    assert loss.traces[0].y[-1] == path.losses[-1].item()
    assert "2 directions, a plateau" in figure.text
