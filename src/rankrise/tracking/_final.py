"""Overlap with the end of training, which is known only afterwards: from the stored directions."""

import os
from typing import TYPE_CHECKING

from rankrise.store import load_directions, rows
from rankrise.tracking.quantities import subspace_overlap

if TYPE_CHECKING:
    import pyarrow as pa


def final_overlap(path: str | os.PathLike[str]) -> "pa.Table":
    """Overlap of the leading subspaces at every stored step with those at the last one.

    Args:
        path: A run directory, finished or not.

    Returns:
        A table with the columns of `load_run`; quantities `final_overlap_left` and `final_overlap_right`, at index
        j − 1 the mean cos² of the angles between the leading j directions then and at the end.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: It has no directions, or they are damaged.
    """
    import pyarrow as pa

    steps = load_directions(path)
    if not steps:
        raise ValueError(f"{path} must hold directions; it has none. Track with `directions` of 1 or more.")
    last = steps[max(steps)]
    blocks = []
    for step, kept in steps.items():
        for name in kept:
            layer, circuit, part = name.split(".")
            if part == "sigma":
                continue
            sigma = f"{layer}.{circuit}.sigma"
            values = subspace_overlap(kept[name], last[name], sigma=kept[sigma], sigma2=last[sigma])
            blocks.append(
                rows(step, f"final_overlap_{part}", values[None], circuit=circuit, layers=[int(layer)], heads=True)
            )
    return pa.Table.from_batches(blocks)
