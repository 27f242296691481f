"""One run as JSON values for the page: heads, stages, and curves with a few hundred points however long the run is."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankrise.runs import Array, Curve, NotMeasurable, RunData, RunStage, layer_means, whole_numbers
from rankrise.view._json import short

_MOST_POINTS = 400  # most points of a curve
_MOST_HEADS = 4096  # most heads in the heat map
_MOST_SPECTRA = 200  # most steps that the scrubber goes through
_MOST_VALUES = 128  # most singular values of a spectrum
_MOST_TOLD = 200  # most stages, and most notes
_MOST_ALERTS = 10  # most alerts above the curves, because a run may have one for every head
_CIRCUITS = ("kq", "vo")
_OF_LAYERS = ("stable_rank", "effective_rank", "frobenius_norm", "spectral_norm")
_OF_PROBES = ("attention_entropy_share", "max_logit", "jacobian_change")


def snapshot(run: RunData, state: str, stages: Sequence[RunStage] | None) -> dict[str, Any]:
    """Return what the page shows of a run.

    Args:
        run: The run.
        state: "finished", "running" or "stopped".
        stages: The stages; None if they have not been looked for yet.
    """
    steps = run.table["step"].to_numpy()
    heads, heads_missing = _heads(run)
    return {
        "source": run.source,
        "experiment": str(run.config.get("experiment", "")),
        "state": state,
        "rows": run.table.num_rows,
        "firstStep": int(steps.min()) if len(steps) else None,
        "lastStep": int(steps.max()) if len(steps) else None,
        "numLayers": len(run.tracked_layers),
        "scalars": _scalars(run),
        "curves": {name: found for name in _recorded(run, _OF_LAYERS + _OF_PROBES) if (found := _layers(run, name))},
        "stages": None if stages is None else told_stages(stages),
        "heads": heads,
        "headsMissing": heads_missing,
        "spectra": [circuit for circuit in _CIRCUITS if run.has("spectrum", circuit)],
        "alerts": _alerts(run),
        "notes": list(run.notes[:_MOST_TOLD]),
    }


def spectra(run: RunData, *, circuit: str, layer: int, head: int) -> dict[str, Any]:
    """Return the singular values of the change of one head at the steps of its spectra, or at 200 of these steps.

    Raises:
        NotMeasurable: The run has no such spectrum.
    """
    curve = run.curve("spectrum", circuit=circuit, layer=layer, head=head)
    values = curve.values.reshape(len(curve.steps), -1)[:, :_MOST_VALUES]
    kept = np.unique(np.linspace(0, len(curve.steps) - 1, min(_MOST_SPECTRA, len(curve.steps))).astype(int))
    return {"steps": _numbers(curve.steps[kept]), "values": [_numbers(row) for row in values[kept]]}


def thinned(steps: Array, values: Array, most: int = _MOST_POINTS) -> tuple[Array, Array, Array, Array]:
    """Thin a curve (S, ...) to at most `most` points: steps, and mean, least and largest value of neighbouring samples.

    Samples that are not finite are left out; a point without any other sample is NaN.

    >>> thinned(np.arange(4.0), np.array([1.0, 3.0, np.nan, 9.0]), most=2)[1:]
    (array([2., 9.]), array([1., 9.]), array([3., 9.]))
    """
    if len(steps) <= most:
        return steps, values, values, values
    edges = np.linspace(0, len(steps), most + 1).astype(np.int64)
    there = np.isfinite(values)
    counts = np.add.reduceat(there, edges[:-1], axis=0, dtype=np.int64)
    total = np.add.reduceat(np.where(there, values, 0.0), edges[:-1], axis=0)
    low = np.minimum.reduceat(np.where(there, values, np.inf), edges[:-1], axis=0)
    high = np.maximum.reduceat(np.where(there, values, -np.inf), edges[:-1], axis=0)
    mean = np.divide(total, counts, out=np.full(total.shape, np.nan), where=counts > 0)
    # Each point has the last step of its block, so that the curve ends where the run ends.
    return steps[edges[1:] - 1], mean, np.where(counts > 0, low, np.nan), np.where(counts > 0, high, np.nan)


def _alerts(run: RunData) -> list[str]:
    """Return the first alerts, each in a sentence, and a sentence that says how many more there are."""
    alerts = run.alerts()
    more = [f"There are {len(alerts) - _MOST_ALERTS} more alerts."] if len(alerts) > _MOST_ALERTS else []
    return [*(alert.sentence for alert in alerts[:_MOST_ALERTS]), *more]


def _scalars(run: RunData) -> dict[str, Any]:
    """The curves of numbers that belong to no layer, the loss first."""
    found = {}
    for name, curve in whole_numbers(run).items():
        steps, mean, low, high = thinned(curve.steps, curve.values)
        found[name] = {"steps": _numbers(steps), "values": _numbers(mean), "last": short(float(curve.values[-1]))}
        if len(steps) < len(curve.steps):
            found[name] |= {"low": _numbers(low), "high": _numbers(high)}
    return found


def _recorded(run: RunData, names: Sequence[str]) -> list[str]:
    """Return those of the quantities that the run has rows of."""
    import pyarrow.compute as pc

    there = set(pc.unique(run.table["quantity"]).to_pylist())
    return [name for name in names if name in there]


def _layers(run: RunData, quantity: str) -> dict[str, Any]:
    """Return a quantity of layers by circuit; a quantity of heads is averaged over them, and a missing one is empty."""
    found = {}
    for circuit in (*_CIRCUITS, ""):
        try:
            layers, steps, means = _of_layers(run, quantity) if not circuit else layer_means(run, quantity, circuit)
        except NotMeasurable:
            continue
        steps, mean, _, _ = thinned(steps, means)
        found[circuit] = {
            "layers": list(layers),
            "steps": _numbers(steps),
            "values": [_numbers(column) for column in mean.T],
        }
    return found


def _of_layers(run: RunData, quantity: str) -> tuple[Sequence[int], Array, Array]:
    """Return layers, steps (S,) and values (S, layers) of a quantity of layers as a whole.

    Raises:
        NotMeasurable: The layers have no such quantity.
    """
    curve = run.curve(quantity, circuit="")
    columns = [column for column, layer in enumerate(curve.layers) if layer >= 0]  # -1: the model as a whole
    if not columns or curve.heads or curve.index:
        raise NotMeasurable(f"{run.source} has no `{quantity}` of layers.")
    return [curve.layers[column] for column in columns], curve.steps, curve.values[:, columns]


def _heads(run: RunData) -> tuple[list[dict[str, Any]], str]:
    """The heads from the one that learned most, or in their order with the reason why they cannot be ranked."""
    try:
        heads = run.heads()
    except NotMeasurable as error:
        return _unranked(run), str(error)
    return [
        {
            "layer": head.layer,
            "head": head.head,
            "learned": short(head.learned),
            "norms": {name: short(value) for name, value in head.norms.items()},
            "ranks": {name: short(value) for name, value in head.ranks.items()},
        }
        for head in heads[:_MOST_HEADS]
    ], ""


def _unranked(run: RunData) -> list[dict[str, Any]]:
    """The heads with their ranks now, where sizes were not measured; none if ranks were not either."""
    found: dict[tuple[int, int], dict[str, float | None]] = {}
    for circuit in _CIRCUITS:
        try:
            curve = run.curve("stable_rank", circuit=circuit)
        except NotMeasurable:
            continue
        if not curve.layers or not curve.heads or curve.index:
            continue
        for (row, column), rank in np.ndenumerate(curve.values[-1]):
            if np.isfinite(rank):
                found.setdefault((curve.layers[row], curve.heads[column]), {})[circuit] = short(float(rank))
    return [
        {"layer": layer, "head": head, "learned": None, "norms": {}, "ranks": ranks}
        for (layer, head), ranks in sorted(found.items())[:_MOST_HEADS]
    ]


def told_stages(stages: Sequence[RunStage]) -> list[dict[str, Any]]:
    """Return the stages in the form that the page reads, in order of time."""
    return [_stage(stage) for stage in stages[:_MOST_TOLD]]


def _stage(stage: RunStage) -> dict[str, Any]:
    return {
        "kind": stage.kind,
        "step": short(stage.step),
        "start": short(stage.start),
        "end": short(stage.end),
        "size": short(stage.size),
        "confidence": short(stage.confidence),
        "layer": stage.layer,
        "circuit": stage.circuit,
    }


def _numbers(values: Array) -> list[float | None]:
    return [short(float(value)) for value in values]


def last_of(curve: Curve) -> float | None:
    """Return the last finite mean of a curve in five digits; None if there is none."""
    mean = curve.mean()
    there = mean[np.isfinite(mean)]
    return short(float(there[-1])) if len(there) else None


def summary(run: RunData) -> dict[str, Any]:
    """Return what the list shows of a run beside its state: how far it is, its loss, and the mean rank of its heads."""
    steps = run.table["step"].to_numpy()
    found: dict[str, Any] = {"step": int(steps.max()) if len(steps) else None, "rows": run.table.num_rows}
    name = next((name for name in ("loss", "train_loss") if run.has(name)), "")
    if name and (loss := run.curve(name)).values.ndim == 1:
        found |= {"loss": last_of(loss), "losses": _numbers(thinned(loss.steps, loss.values, 40)[1])}
    if run.has("stable_rank", "kq"):
        rank = run.curve("stable_rank", circuit="kq")
        moved = rank.steps > 0  # at the start nothing has changed, and the rank of nothing is no point of a curve
        ranks = thinned(rank.steps[moved], rank.mean()[moved], 40)[1]
        found |= {"rank": last_of(rank) if moved.any() else None, "ranks": _numbers(ranks)}
    return found
