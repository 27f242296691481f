"""What the circuits were before training: spectra of the products of the initial weights a run keeps."""

import os
from typing import TYPE_CHECKING, Any

from rankrise.heads import LowRankUpdate, NormGain, WeightView
from rankrise.linalg import product_spectrum
from rankrise.store import load_initial, load_spec, rows

if TYPE_CHECKING:
    import pyarrow as pa

_CIRCUITS = {"kq": ("k", "q"), "vo": ("v", "o")}


def initial_spectra(path: str | os.PathLike[str]) -> "pa.Table":
    """Singular values of `W_K W_Qᵀ` and `W_V W_Oᵀ` before the first step, of every head.

    The table of a run holds the change since then; this is what it changed from.

    Args:
        path: A run directory, finished or not.

    Returns:
        A table with the columns of `load_run`: quantity `initial_spectrum`, step 0, `index` from 0.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: Its initial weights are missing or damaged, or it is not the run of a tracker.

    >>> import tempfile, torch
    >>> from rankrise import RankTracker
    >>> layer = torch.nn.MultiheadAttention(4, 2, bias=False)
    >>> out = tempfile.mkdtemp()
    >>> RankTracker(layer, out=out, every=1).close()
    >>> initial_spectra(out).num_rows  # two circuits of two heads, of rank 2
    8
    """
    import pyarrow as pa

    spec = load_spec(path)
    if "layers" not in spec:
        raise ValueError(f"{path} must be the run of a tracker; its spec.json lists no layers. Pass another run.")
    get = load_initial(path).__getitem__
    blocks = []
    for layer in spec["layers"]:
        views = {role: _view(role, record) for role, record in layer["views"].items()}
        for circuit, (left, right) in _CIRCUITS.items():
            sigma = product_spectrum(views[left].read(get), views[right].read(get))  # (heads, r)
            values = sigma.double().cpu()[None]
            blocks.append(
                rows(0, "initial_spectrum", values, circuit=circuit, layers=[int(layer["index"])], heads=True)
            )
    return pa.Table.from_batches(blocks)


def _view(role: str, record: dict[str, Any]) -> WeightView:
    """The recipe as `spec.json` has it."""
    fields = dict(record)
    adapters = tuple(LowRankUpdate(**update) for update in fields.pop("adapters"))
    norm = fields.pop("norm")
    shape = tuple(fields.pop("shape"))
    return WeightView(role=role, shape=shape, adapters=adapters, norm=NormGain(**norm) if norm else None, **fields)
