"""Figures of what probes read during training: entropy of attention, slingshots, rank of the kernel."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.runs import NotMeasurable, headline
from rankrise.signals import detect_slingshots
from rankrise.view import _networks as net
from rankrise.view._figure import Axis, FigureData, Mark, Panel, Trace, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rankrise.runs import RunData

_STEP = Axis("step", low=0)


def entropy_over_training(runs: "Mapping[str, RunData]") -> FigureData:
    """The lowest and the mean entropy of all heads as a share of log n, the floor, and the largest logit.

    Args:
        runs: Runs by label, of trackers with an `EntropyProbe`.

    Raises:
        NotMeasurable: A run has no entropies.
    """
    shares, logits = [], []
    for label, run in runs.items():
        steps, share = _heads(run, "attention_entropy_share", "EntropyProbe()")
        _, entropy = _heads(run, "attention_entropy", "EntropyProbe()")
        _, floor = _heads(run, "entropy_floor", "EntropyProbe()")
        _, largest = _heads(run, "max_logit", "EntropyProbe()")
        own = "" if len(runs) == 1 else f"{label}: "
        with np.errstate(invalid="ignore", divide="ignore"):
            lowest_floor = np.nanmin(np.where(entropy > 0, floor / entropy * share, np.nan), axis=1)
        shares += [
            _line(steps, np.nanmin(share, axis=1), f"{own}lowest head", label),
            _line(steps, np.nanmean(share, axis=1), f"{own}mean", label, style="dashed"),
            _line(steps, lowest_floor, f"{own}lowest floor", label, style="dotted"),
        ]
        logits.append(_line(steps, np.nanmax(largest, axis=1), label if own else "", label))
    panels = (
        Panel("attention entropy", _STEP, Axis("share of log n", low=0, high=1), tuple(shares)),
        Panel("largest logit", _STEP, Axis("logit"), tuple(logits)),
    )
    return _figure(
        "entropy_over_training",
        "Entropy of attention",
        "Entropy of the rows of attention as a share of log n, 1 for a head that looks everywhere, and the least "
        "that logits of their size allow (dotted). A low entropy is not an illness by itself.",
        runs,
        panels,
    )


def kernel_rank_over_training(runs: "Mapping[str, RunData]") -> FigureData:
    """Effective and stable rank of the empirical kernel, and its cosines with the kernel at the start and the targets.

    Args:
        runs: Runs by label, of trackers with a `KernelProbe`.

    Raises:
        NotMeasurable: A run has no kernels.
    """
    ranks, cosines = [], []
    for label, run in runs.items():
        own = "" if len(runs) == 1 else f"{label}: "
        for name, words, style in (
            ("effective_rank", "effective rank", "line"),
            ("stable_rank", "stable rank", "dashed"),
        ):
            steps, values = _whole(run, f"kernel_{name}", "ntk", "KernelProbe(inputs)")
            ranks.append(_line(steps, values, f"{own}{words}", label, style=style))
        steps, values = _whole(run, "kernel_cosine", "ntk", "KernelProbe(inputs)")
        cosines.append(_line(steps, values, f"{own}cosine with the start", label))
        if run.has("kernel_alignment", "ntk"):
            steps, values = _whole(run, "kernel_alignment", "ntk", "KernelProbe(inputs)")
            cosines.append(_line(steps, values, f"{own}cosine with the targets", label, style="dashed"))
    panels = (
        Panel("rank of the kernel", _STEP, Axis("rank", low=1), tuple(ranks)),
        Panel("cosine of the kernel", _STEP, Axis("cosine"), tuple(cosines)),
    )
    return _figure(
        "kernel_rank_over_training",
        "Rank of the empirical kernel",
        "Ranks of the centred empirical kernel on a fixed batch, and its cosine with the kernel at the start and with "
        "that of the targets. A lazy network keeps both.",
        runs,
        panels,
    )


def slingshots(runs: "Mapping[str, RunData]") -> FigureData:
    """Loss, norm of the last layer, absorbed samples and test accuracy; in a figure of one run slingshots are marked.

    Args:
        runs: Runs by label, of trackers with a `ClassifierProbe` that were told the loss.

    Raises:
        NotMeasurable: A run has no norms of a last layer, or no loss at the steps at which the norms were measured.
    """
    losses, norms, absorbed, accuracy, peaks = [], [], [], [], []
    for label, run in runs.items():
        steps, norm = _whole(run, "last_norm", "", "ClassifierProbe()")
        loss = _loss_at(run, steps)
        own = "" if len(runs) == 1 else label
        losses.append(_line(steps, np.where(loss > 0, loss, np.nan), own, label))
        norms.append(_line(steps, norm.reshape(-1), own, label))
        if run.has("absorbed"):
            at, values = run.scalar_path("absorbed")
            absorbed.append(_line(at, values, own, label))
        if run.has("test_accuracy"):
            at, values = run.scalar_path("test_accuracy")
            accuracy.append(_line(at, values, own, label))
        peaks += [one.peak for one in detect_slingshots(steps, loss, norm.reshape(-1)).closed] if not own else []
    marks = tuple(Mark(peak) for peak in peaks)
    panels = [
        Panel("training loss", _STEP, Axis("loss", log=True), tuple(losses), marks),
        Panel("last layer", _STEP, Axis("norm", low=0), tuple(norms), marks),
        Panel("softmax rounded to 1", _STEP, Axis("share of the batch", low=0, high=1), tuple(absorbed), marks),
        Panel("test", _STEP, Axis("accuracy", low=0, high=1), tuple(accuracy), marks),
    ]
    found = f" {len(marks)} slingshots were found; thin lines mark their peaks." if len(runs) == 1 else ""
    return _figure(
        "slingshots",
        "Slingshots",
        "After a network has fitted its data, the norm of the last layer may run up, the loss spike and the norm stay, "
        f"again and again. It begins where the softmax of the right class rounds to 1.{found}",
        runs,
        tuple(panel for panel in panels if panel.traces),
    )


def _loss_at(run: "RunData", steps: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return the recorded loss at these steps."""
    at, loss = run.scalar_path("loss")
    places = np.searchsorted(at, steps).clip(max=len(at) - 1)
    if not np.array_equal(at[places], steps):
        raise NotMeasurable(
            f"{run.source} has no loss at some steps at which its last layer was measured. Record it: "
            "tracker.step(step, loss=loss)."
        )
    return np.asarray(loss[places])


def _figure(
    figure_id: str, title: str, text: str, runs: "Mapping[str, RunData]", panels: tuple[Panel, ...]
) -> FigureData:
    some = next(iter(runs.values()))
    return FigureData(
        id=figure_id,
        experiment=some.folder.name if len(runs) == 1 else "compared",
        title=net.titled(title, some.source if len(runs) == 1 else " and ".join(runs)),
        text=text,
        run="; ".join(headline(run.progress()) for run in runs.values()),
        panels=panels,
        rows=1,
        cols=len(panels),
        sources=tuple(run.source for run in runs.values()),
    )


def _heads(run: "RunData", quantity: str, probe: str) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """Return the steps (S,), and a quantity of all heads of all layers side by side, (S, heads)."""
    steps, values = _whole(run, quantity, "kq", probe)
    return steps, values.reshape(len(steps), -1)


def _whole(
    run: "RunData", quantity: str, circuit: str, probe: str
) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    if not run.has(quantity, circuit):
        raise NotMeasurable(f"{run.source} has no {quantity}. Build the tracker with probes=[{probe}].")
    curve = run.curve(quantity, circuit=circuit)
    return curve.steps, curve.values


def _line(x: "NDArray[np.float64]", y: "NDArray[np.float64]", label: str, group: str, *, style: str = "line") -> Trace:
    return Trace(numbers(x), numbers(y), label, group=group, style=style)  # type: ignore[arg-type]
