"""Labels at the ends of curves, moved apart where they would touch."""

from typing import TYPE_CHECKING

from rankrise.lab.figures import Panel
from rankrise.lab.report._colours import colour_of
from rankrise.lab.report._text import to_mathtext

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = 8.0  # points
_GAP = 9.5  # points between baselines
_NEAR = 2.0  # points that a label may move without a line to its curve


def spread(axes: "Axes", panel: Panel, found: dict[str, str]) -> None:
    """Write the label of each trace that asks for it at its end, with a line to it where it had to move."""
    named = [trace for trace in panel.traces if trace.label and trace.at_end]
    if not named:
        return
    points = [axes.transData.transform((trace.x[-1], trace.y[-1]))[1] for trace in named]
    scale = axes.figure.dpi / 72.0
    box = axes.get_window_extent()
    heights = apart(points, gap=_GAP * scale, low=box.y0, high=box.y1)
    moves = [(height - point) / scale for height, point in zip(heights, points, strict=True)]
    room = 12 if any(abs(move) > _NEAR for move in moves) else 4
    for trace, move in zip(named, moves, strict=True):
        colour = colour_of(trace, found)
        leader = {"arrowstyle": "-", "lw": 0.7, "color": colour, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        axes.annotate(
            to_mathtext(trace.label),
            (trace.x[-1], trace.y[-1]),
            xytext=(room, move),
            textcoords="offset points",
            fontsize=_SIZE,
            va="center",
            color=colour,
            annotation_clip=False,
            arrowprops=leader if abs(move) > _NEAR else None,
        )


def apart(points: list[float], *, gap: float, low: float, high: float) -> list[float]:
    """Positions near `points`, in their order, at least `gap` from each other and within bounds if there is room.

    >>> apart([0.0, 1.0, 10.0], gap=2.0, low=0.0, high=20.0)
    [0.0, 2.0, 10.0]
    """
    order = sorted(range(len(points)), key=points.__getitem__)
    blocks: list[list[float]] = []  # middle, number: labels that touch move as one
    for i in order:
        blocks.append([points[i], 1.0])
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-1][1] + blocks[-2][1]) / 2:
            (m1, n1), (m2, n2) = blocks[-2], blocks.pop()
            blocks[-1] = [(m1 * n1 + m2 * n2) / (n1 + n2), n1 + n2]
        half = gap * (blocks[-1][1] - 1) / 2
        blocks[-1][0] = max(min(blocks[-1][0], high - half), low + half)
    placed = [middle + gap * (k - (num - 1) / 2) for middle, num in blocks for k in range(int(num))]
    found = [0.0] * len(points)
    for i, value in zip(order, placed, strict=True):
        found[i] = value
    return found
