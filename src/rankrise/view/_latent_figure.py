"""The singular values of a code along the training of an autoencoder."""

from typing import TYPE_CHECKING

from rankrise.view._figure import Axis, FigureData, Mark, Panel, Trace, numbers

if TYPE_CHECKING:
    from rankrise.latent import LatentPath, LatentVerdict

_MOST_CURVES = 16


def latent_figure(path: "LatentPath", verdict: "LatentVerdict", *, planted: int | None = None) -> FigureData:
    """Return the singular values on a logarithmic axis, and the rank with the loss beside them.

    Args:
        path: What `LatentRank.path_` holds.
        verdict: What it says.
        planted: The rank that the data are known to have; drawn dashed.

    >>> import torch
    >>> from rankrise.latent import LatentPath
    >>> path = LatentPath(torch.arange(2), torch.arange(2), torch.ones(2), torch.tensor([[1.0, 0.1], [2.0, 1.0]]))
    >>> [panel.title for panel in latent_figure(path, path.verdict()).panels]
    ['singular values of the code', 'rank', 'reconstruction']
    """
    steps = numbers(path.steps.tolist())
    count = min(path.spectra.shape[1], _MOST_CURVES)
    values = tuple(
        Trace(
            steps,
            numbers(path.spectra[:, i].tolist()),
            f"σ{i + 1}" if i < verdict.rank else "",
            "counted" if i < verdict.rank else "not counted",
            style="line" if i < verdict.rank else "dotted",
            at_end=i < verdict.rank,
        )
        for i in range(count)
    )
    ranks = [Trace(steps, numbers(path.ranks().tolist()), "99.9% of the variance", "rank", style="steps")]
    if planted is not None:
        ranks.append(Trace((steps[0], steps[-1]), (float(planted),) * 2, "planted", "planted", style="dashed"))
    marks = (Mark(float(verdict.settled_at), "since then"),)
    step = Axis("step", low=0.0)
    panels = (
        Panel("singular values of the code", step, Axis("standard deviation", log=True), values, marks),
        Panel("rank", step, Axis("directions", low=0.0), tuple(ranks), marks),
        Panel(
            "reconstruction",
            step,
            Axis("squared error / variance", log=True),
            (Trace(steps, numbers(path.losses.tolist()), "", "loss"),),
        ),
    )
    text = f"The code fills one direction after another. Verdict: {verdict}."
    return FigureData("latent_rank_over_training", "Latent rank over training", text, panels, 1, 3, ())
