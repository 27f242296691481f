"""`rankrise latent`: how many dimensions the data in a file have."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankrise._extras import require
from rankrise._tables import table
from rankrise.cli._output import file

if TYPE_CHECKING:
    import numpy as np

    from rankrise.latent import LatentRank

_FORMATS = (".svg", ".png", ".pdf", ".csv")


def latent(
    data: Annotated[Path, typer.Argument(help="An .npy with one matrix of real numbers, a row for each sample.")],
    depth: Annotated[int, typer.Option(help="Layers of the linear sub-network; 0 for a plain autoencoder.", min=0)] = 4,
    code_dim: Annotated[int, typer.Option(help="Size of the code, an upper bound on the answer.", min=1)] = 32,
    hidden: Annotated[int, typer.Option(help="Width of the hidden layers.", min=1)] = 64,
    steps: Annotated[int, typer.Option(help="Steps of training; more if the rank is still rising.", min=1)] = 1500,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.", min=0)] = 0,
    figure: Annotated[Path | None, typer.Option(help="File for a figure: .svg, .png, .pdf or .csv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Ask how many dimensions data have: an autoencoder fills its code one direction after another.

    The answer is a rank with a verdict. Plateau: it came to rest in the first half of the training. Still rising: train
    longer. No gap: it depends on where one cuts.
    """
    if figure is not None:
        _check_figure(figure)
    if not data.is_file():
        raise ValueError(f"`data` must be an .npy that exists; {data} is no file.")
    from rankrise.latent import LatentRank
    from rankrise.store import read_npy

    matrix = read_npy(data, argument="data")
    _check(matrix, data.stat().st_size, hidden=hidden, code_dim=code_dim, depth=depth)
    found = LatentRank(depth=depth, code_dim=code_dim, hidden=hidden, steps=steps, seed=seed).fit(matrix)
    record = _record(found, matrix)
    typer.echo(json.dumps(record, indent=1, allow_nan=False) if as_json else _text(found, record))
    if figure is not None:
        from rankrise.cli._figure import save
        from rankrise.view import latent_figure

        typer.echo(f"wrote {save(latent_figure(found.path_, found.verdict_), figure)}", err=True)


def _check_figure(path: Path) -> None:
    if path.suffix not in _FORMATS:
        raise typer.BadParameter(f"`--figure` must end in one of {', '.join(_FORMATS)}; got {path.name!r}.")
    file(path, "--figure")
    if path.suffix != ".csv":
        require("Drawing a figure", "matplotlib", otherwise="or ask for a .csv")


def _check(matrix: "np.ndarray", num_file_bytes: int, *, hidden: int, code_dim: int, depth: int) -> None:
    """Refuse data that are no matrix, and a small file whose number of columns would make a network too large."""
    from rankrise.store import MOST_BYTES, UntrustedInputError

    if matrix.ndim != 2 or min(matrix.shape) < 1:
        raise UntrustedInputError(
            f"`data` must hold a matrix, a row for each sample; got the shape {matrix.shape}. Reshape it to (n, d)."
        )
    num_weights = 2 * hidden * (matrix.shape[1] + hidden + code_dim) + depth * code_dim**2
    num_bytes, most = 16 * num_weights, max(MOST_BYTES.value(), 8 * num_file_bytes)  # weight, gradient, two of Adam
    if num_bytes > most:
        raise UntrustedInputError(
            f"`data` has {matrix.shape[1]} columns, for which training takes {num_bytes} bytes, more than {most}. "
            f"{MOST_BYTES.remedy}."
        )


def _record(found: "LatentRank", matrix: "np.ndarray") -> dict[str, object]:
    verdict, path = found.verdict_, found.path_
    return {
        "num_samples": matrix.shape[0],
        "num_columns": matrix.shape[1],
        "rank": verdict.rank,
        "verdict": verdict.state,
        "settled_at_step": verdict.settled_at,
        "gap": verdict.gap if math.isfinite(verdict.gap) else None,
        "error": found.error_,
        "singular_values": path.spectra[-1].tolist(),
        "path": {"steps": path.steps.tolist(), "ranks": path.ranks().tolist(), "losses": path.losses.tolist()},
        "parameters": found.get_params(),
    }


def _text(found: "LatentRank", record: dict[str, object]) -> str:
    verdict, last = found.verdict_, found.path_.spectra[-1]
    shown = min(verdict.rank + 2, len(last))
    rows = [
        {
            "direction": i + 1,
            "singular value": f"{last[i]:.4g}",
            "share of variance": f"{last[i] ** 2 / last.square().sum():.3%}",
            "counted": "yes" if i < verdict.rank else "no",
        }
        for i in range(shown)
    ]
    lines = [
        f"{record['num_samples']} samples of {record['num_columns']} numbers: {verdict}.",
        f"The code leaves {found.error_:.2%} of the variance unexplained.\n",
        table(rows),
    ]
    return "\n".join(lines)
