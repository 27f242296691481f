"""Thin copies of finished runs, for `results/runs`: `python tools/collect_results.py runs results/runs [NAME...]`.

Copies `runs/<name>/<hash>` to `results/runs/<name>/<hash>`; a copy that is there already is written again. A thin copy
holds what figures and claims read of a run, and no more: a few hundred kilobytes in place of ten megabytes.
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankrise.lab.experiments import kind_of, read_spec
from rankrise.lab.models import build_model
from rankrise.store import copy_thin, has_run, is_sealed, load_run, load_spec, read_manifest, save_tensors
from rankrise.tracking import initial_spectra

if TYPE_CHECKING:
    import pyarrow as pa

_CIRCUITS = ("kq", "vo")
_NUM_VALUES = 32  # of a spectrum on the way
_NUM_LAST = 64  # of the last one
_MOST_ROWS = 70_000  # of spectra on the way: decides how many steps are kept
_BITS = 17  # of a mantissa: a relative error of at most 8e-6


def thin_run(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> Path:
    """Copy a finished run with only what figures and claims read.

    Kept of a training run: all stable ranks of both circuits; spectra at some steps, 32 values on the way and 64 at the
    last; the spectra before training, made from the initial weights; scalars, the loss at measured steps only. Numbers
    of layers are rounded to 17 bits of mantissa, a relative error of at most 8e-6; scalars are not. Theory runs keep
    all rows, rounded alike.

    Args:
        source: The run; the copy of a thin one is the same. Where its initial weights are missing they are built again
            from the seed, and must have the checksum that its manifest has.
        target: Folder of the copy.

    Returns:
        The folder.

    Raises:
        ValueError: The run is not finished or damaged, or its initial weights cannot be had.
    """
    import pyarrow as pa

    origin = Path(source)
    table = load_run(origin)
    spec = read_spec(origin).spec
    if kind_of(spec).is_network and not read_manifest(origin).is_thin:
        table = pa.concat_tables([_with_initial(origin, spec), *_kept(table)])
    return copy_thin(origin, target, _rounded(table))


def _kept(table: "pa.Table") -> "list[pa.Table]":
    import pyarrow as pa
    import pyarrow.compute as pc

    is_circuit = pc.is_in(table["circuit"], pa.array(_CIRCUITS))
    ranks = table.filter(pc.and_(is_circuit, pc.equal(table["quantity"], "stable_rank")))
    spectra = table.filter(pc.and_(is_circuit, pc.equal(table["quantity"], "spectrum")))
    measured = pc.unique(ranks["step"])
    scalars = table.filter(pc.equal(table["layer"], -1))
    is_kept = pc.or_(pc.not_equal(scalars["quantity"], "loss"), pc.is_in(scalars["step"], measured))
    return [ranks, *_thin_spectra(spectra), scalars.filter(is_kept)]


def _thin_spectra(spectra: "pa.Table") -> "list[pa.Table]":
    """Leading values at steps spread from the first to the last, more of them at the last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not spectra.num_rows:
        return []
    steps = np.unique(spectra["step"].to_numpy())
    leading = spectra.filter(pc.less(spectra["index"], _NUM_VALUES))
    num = int(np.clip(_MOST_ROWS * len(steps) // leading.num_rows, 6, len(steps)))
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, num).round().astype(int))]
    last = pc.equal(spectra["step"], int(steps[-1]))
    return [
        leading.filter(pc.is_in(leading["step"], pa.array(chosen[:-1]))),
        spectra.filter(pc.and_(last, pc.less(spectra["index"], _NUM_LAST))),
    ]


def _with_initial(origin: Path, spec: Any) -> "pa.Table":
    """Spectra before training; from the run, or from its weights built again and checked."""
    if (origin / "initial.safetensors").is_file():
        return initial_spectra(origin)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("spec.json", "env.json", "MANIFEST.json"):
            shutil.copyfile(origin / name, copy / name)
        weights = build_model(spec.model, seed=spec.seed).state_dict()
        names = _tensor_names(load_spec(origin))
        save_tensors(copy / "initial.safetensors", {name: weights[name] for name in names}, "initial")
        return initial_spectra(copy)  # refuses what is not as the manifest says


def _tensor_names(spec: dict[str, Any]) -> list[str]:
    """Weights that the tracker kept: those its views read."""
    found = (view["parameter"] for layer in spec["layers"] for view in layer["views"].values())
    return list(dict.fromkeys(found))


def _rounded(table: "pa.Table") -> "pa.Table":
    """Values of layers to the nearest number of few bits, so that they compress; single numbers as they are."""
    import pyarrow as pa

    values = table["value"].to_numpy()
    mantissa, exponent = np.frexp(values)
    short = np.ldexp(np.round(mantissa * 2.0**_BITS) / 2.0**_BITS, exponent)
    is_rounded = np.isfinite(values) & (table["layer"].to_numpy() >= 0)
    place = table.schema.get_field_index("value")
    return table.set_column(place, table.schema.field(place), pa.array(np.where(is_rounded, short, values)))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("out", type=Path, help="folder of the copies")
    parser.add_argument("names", nargs="*", help="experiments; all unless given")
    options = parser.parse_args()
    for folder in sorted(options.runs.glob("*/*")):
        if has_run(folder) and is_sealed(folder) and (not options.names or folder.parent.name in options.names):
            copy = thin_run(folder, options.out / folder.parent.name / folder.name)
            size = sum(path.stat().st_size for path in copy.iterdir())
            print(f"{copy}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
