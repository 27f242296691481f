"""The stages of Algorithm 1 over the gradient flow: what `Stages.plot` and `Flow.plot` draw."""

from typing import TYPE_CHECKING

from rankrise.view._figure import Axis, FigureData, Mark, Panel, Trace, numbers

if TYPE_CHECKING:
    from rankrise.theory import Flow, Stages

_TIME = Axis("time / log(1/α)", low=0.0)
_AFTER = 1.1  # without a flow, the last plateau is drawn up to this multiple of the time of the last stage


def stages_figure(
    stages: "Stages | None" = None, flow: "Flow | None" = None, *, num_coordinates: int = 10
) -> FigureData:
    """Return the products and the loss against rescaled time: steps for the limit, lines for a flow.

    Args:
        stages: Stages of the limit, or of a predicted run; drawn as steps.
        flow: A flow of the same network; drawn as lines, each in the colour of its coordinate.
        num_coordinates: How many coordinates to draw; those with the largest products at the end are chosen.

    Raises:
        ValueError: Neither is given, or they have different numbers of weights.
    """
    both = [result for result in (stages, flow) if result is not None]
    if not both:
        raise ValueError("`stages` or `flow` must be given; got neither: pass at least one of them.")
    if len({result.products.shape[1] for result in both}) > 1:
        sizes = " and ".join(str(result.products.shape[1]) for result in both)
        raise ValueError(
            f"`stages` and `flow` must be of one network; got {sizes} weights: pass those of the same net."
        )
    last = both[-1].products[-1].abs()
    chosen = [i for i in last.argsort(descending=True, stable=True).tolist() if last[i] > 0][:num_coordinates]
    losses, products = [], []
    marks: tuple[Mark, ...] = ()
    if stages is not None:
        first = [0.0, *stages.times.tolist()]
        end = float(flow.times[-1]) if flow is not None else _AFTER * first[-1] or 1.0
        rows = [k for k, time in enumerate(first) if time <= end]
        times = (*(first[k] for k in rows), end)
        rows = [*rows, rows[-1]]
        losses.append(Trace(times, numbers(stages.losses[rows].tolist()), "Algorithm 1", "stages", style="steps"))
        for i in chosen:
            values = stages.products[rows, i].tolist()
            if flow is None:
                products.append(Trace(times, numbers(values), f"q[{i}]", f"q[{i}]", style="steps", at_end=True))
            else:  # a dashed trace cannot be drawn as steps, so that it gets the corners of the steps
                across, up = _corners(list(times), values)
                products.append(Trace(numbers(across), numbers(up), "", f"q[{i}]", style="dashed"))
        marks = tuple(Mark(time) for time in first[1:] if time <= end)
    if flow is not None:
        steps = numbers(flow.times.tolist())
        losses.append(Trace(steps, numbers(flow.losses.tolist()), f"flow, α = 10^{flow.log10_alpha:g}", "flow"))
        for i in chosen:
            path = numbers(flow.products[:, i].tolist())
            products.append(Trace(steps, path, f"q[{i}]", f"q[{i}]", at_end=True))
    text = "Products join one after another, and the loss falls at each." + (
        " Dashed: Algorithm 1, the limit α → 0." if len(both) == 2 else ""
    )
    panels = (
        Panel("loss", _TIME, Axis("loss"), tuple(losses), marks),
        Panel("products", _TIME, Axis("product q = u v"), tuple(products), marks),
    )
    return FigureData("stages", "Stages of learning", text, panels, 1, 2, ())


def _corners(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """Return the corners of steps that hold each value until the next x.

    >>> _corners([0.0, 1.0, 2.0], [0.0, 5.0, 5.0])
    ([0.0, 1.0, 1.0, 2.0, 2.0], [0.0, 0.0, 5.0, 5.0, 5.0])
    """
    across, up = x[:1], y[:1]
    for time, before, after in zip(x[1:], y[:-1], y[1:], strict=True):
        across += [time, time]
        up += [before, after]
    return across, up
