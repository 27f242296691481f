"""What is computed from a run directory afterwards: overlap with the end of training, spectra before training."""

import os
from typing import TYPE_CHECKING, Any

from rankrise.heads import CIRCUITS, LatentInput, LowRankUpdate, NormGain, WeightView
from rankrise.linalg import product_spectrum
from rankrise.store import load_directions, load_initial, load_spec
from rankrise.tracking._measurement import Measurement
from rankrise.tracking._quantities import subspace_overlap

if TYPE_CHECKING:
    import pyarrow as pa


def final_overlap(path: str | os.PathLike[str]) -> "pa.Table":
    """Overlap of the leading subspaces at every stored step with those at the last stored step.

    Args:
        path: A run directory, finished or not.

    Returns:
        A table with the columns of `load_run` and the quantities `final_overlap_left` and `final_overlap_right`, of the
        heads that have directions at the last step. The row with index j − 1 is the mean cos² of the angles between the
        leading j directions then and at the end.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The run has no directions, or its directions are damaged.
    """
    import pyarrow as pa

    steps = load_directions(path)
    if not steps:
        raise ValueError(f"{path} must hold directions; it has none. Track with `directions` of 1 or more.")
    last = steps[max(steps)]
    blocks = []
    for step, kept in steps.items():
        for key in kept:
            layer, circuit, part = key.split(".")
            if part == "sigma" or key not in last:  # a layer whose last measurement failed has no directions to compare
                continue
            sigma = f"{layer}.{circuit}.sigma"
            overlap = subspace_overlap(kept[key], last[key], sigma=kept[sigma], sigma2=last[sigma])
            name = f"final_overlap_{part}"
            blocks.append(
                Measurement(name, overlap[None], layers=(int(layer),), heads=True, circuit=circuit).rows(step)
            )
    return pa.Table.from_batches(blocks)


def initial_spectra(path: str | os.PathLike[str]) -> "pa.Table":
    """Singular values of `W_K W_Qᵀ` and `W_V W_Oᵀ` of every head before the first step.

    The table of a run holds the change since the first step; this function gives what the weights changed from.

    Args:
        path: A run directory, finished or not.

    Returns:
        A table with the columns of `load_run`: quantity `initial_spectrum`, step 0, `index` from 0.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The initial weights are missing or damaged, or the run was not made by a tracker of heads.

    >>> import tempfile, torch
    >>> from rankrise import RankTracker
    >>> layer = torch.nn.MultiheadAttention(4, 2, bias=False)
    >>> out = tempfile.mkdtemp()
    >>> RankTracker(layer, out=out, every=1).close()
    >>> initial_spectra(out).num_rows  # two circuits of two heads, each of rank 2
    8
    """
    import pyarrow as pa

    layers = load_spec(path).get("layers")
    if not layers:
        raise ValueError(f"{path} must be the run of a tracker; its spec.json lists no layers. Pass another run.")
    get = load_initial(path).__getitem__
    blocks = []
    for layer in layers:
        views = {role: _view(role, record) for role, record in layer["views"].items()}
        missing = [role for pair in CIRCUITS.values() for role in pair if role not in views]
        if missing:
            raise ValueError(f"{path} must say where {missing[0]} of every layer is read; its spec.json does not.")
        for circuit, (left, right) in CIRCUITS.items():
            sigma = product_spectrum(views[left].read(get), views[right].read(get))  # (heads, r)
            where: dict[str, Any] = {"layers": (int(layer["index"]),), "heads": True, "circuit": circuit}
            blocks.append(Measurement("initial_spectrum", sigma[None], **where).rows(0))
    return pa.Table.from_batches(blocks)


def _view(role: str, record: dict[str, Any]) -> WeightView:
    """The recipe of a matrix, from its record in `spec.json`."""
    fields = dict(record)
    adapters = tuple(LowRankUpdate(**update) for update in fields.pop("adapters"))
    norm, down = fields.pop("norm"), fields.pop("down", None)
    shape = tuple(fields.pop("shape"))
    if down is not None:
        updates = tuple(LowRankUpdate(**update) for update in down.pop("adapters"))
        fields["down"] = LatentInput(**down, adapters=updates)
    return WeightView(role=role, shape=shape, adapters=adapters, norm=NormGain(**norm) if norm else None, **fields)
